"""Puts nnsight's forward on the modules whose values a step waits for.

nnsight wraps each module's own forward, to hand over what passes, and leaves the wrapper there.
Where nobody waits for anything the wrapper only finds that out, at every module of every step.
"""

from __future__ import annotations

from collections.abc import Iterable

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
            (module, forward)
            for module in root.modules()
            if isinstance(forward := module.__dict__.get("forward"), Controller)
            and module.__dict__[STATE].body is type(module).forward
        ]
        self._there: frozenset[str] | None = None

    def use(self, locations: Iterable[str] | None) -> None:
        """Put nnsight's forwards in front of the modules' own, or take them away.

        Args:
            locations: Where values are waited for; only the modules that hand one over there have
                nnsight's forward. None where it may be anywhere.
        """
        wanted = None if locations is None else frozenset(locations)
        if wanted == self._there:
            return
        for module, forward in self._forwards:
            if wanted is None or any(not wanted.isdisjoint(own) for *_, own in _routes(module)):
                module.__dict__["forward"] = forward
            else:
                module.__dict__.pop("forward", None)
        self._there = wanted


def _routes(module: nn.Module) -> Iterable[tuple[object, str, tuple[str, ...]]]:
    """Return the trees that ``module`` is in, each with its path and its locations there."""
    return module.__dict__[STATE].routes
