"""nnsight's forward on every module, while a step needs it.

nnsight stands in front of each module's own forward to hand over what comes by, and stays
there. With nobody to hand anything to it only asks so, at every module of every step.
"""

from __future__ import annotations

from nnsight.intervention.source import STATE, Controller
from torch import nn


class NnsightForwards:
    """The forwards that nnsight has put on the modules of a tree.

    Args:
        root: The module whose tree it is. A forward that a module had of its own stays as it
            is, with nnsight's around it.
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
        """Have them in front of the modules' own, or out of the way."""
        if there is self._there:
            return
        for attributes, forward in self._forwards:
            if there:
                attributes["forward"] = forward
            else:
                del attributes["forward"]
        self._there = there
