"""Puts nnsight's forward on every module for the steps that need it.

nnsight wraps each module's own forward, to hand over what passes, and leaves the wrapper there.
Where nobody waits for anything the wrapper only finds that out, at every module of every step.
"""

from __future__ import annotations

from nnsight.intervention.source import STATE, Controller
from torch import nn


class NnsightForwards:
    """Puts on and takes off the forwards that nnsight has set on the modules of a tree.

    Args:
        root: The root module of the tree. A forward that a module had of its own stays as it is,
            with nnsight's around it.
    """

    def __init__(self, root: nn.Module) -> None:
        self._forwards = [
            (module.__dict__, forward)
            for module in root.modules()
            if isinstance(forward := module.__dict__.get("forward"), Controller)
            and module.__dict__[STATE].body is type(module).forward
        ]
        self._there = True

    def use(self, there: bool) -> None:
        """Put nnsight's forwards in front of the modules' own, or take them away.

        Args:
            there: Whether they are to be there.
        """
        if there is self._there:
            return
        for attributes, forward in self._forwards:
            if there:
                attributes["forward"] = forward
            else:
                del attributes["forward"]
        self._there = there
