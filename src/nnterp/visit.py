"""The values a block has open at the place it is at.

While a block stays at one location, reads of one value are one tensor, an assignment
replaces it, and a value derived from others (scores from queries and keys) sees their
edits. When the block moves on, the values that changed, and only those, are put back into
what the model carries on with; where gradients are kept, those that did not as well, so that
it is made of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .serving import Serving, StandardEnvoy
from .sites import Site

if TYPE_CHECKING:
    from .eproperty import StandardValue

#: Where an edit in place was made that is refused when the block moves on.
_ABOVE = ", and was edited in place on a line above"

#: One open value: its host, the tensor the block holds, and the version and shape it had when
#: it was handed over; a bare tuple, for one is made with every read.
Open = tuple[StandardEnvoy, Tensor, int, torch.Size]


class Visit:
    """The values a block has open at one occurrence of one location.

    It stands where nnsight keeps a read's write-back, and answers to the same names:
    nnsight asks ``fn`` for what to swap in when the block moves on.
    """

    # nnsight's own views of a location are never answered from a visit.
    view = None
    key = None

    __slots__ = ("_open", "arrived", "location", "occurrence", "serving", "sites")

    def __init__(self, serving: Serving, location: str, occurrence: int, arrived: Any) -> None:
        self.serving = serving
        self.location = location
        self.occurrence = occurrence
        self.arrived = arrived
        #: The sites of values whose earlier part had to be read first.
        self.sites: dict[StandardValue, Site] = {}
        self._open: dict[StandardValue, Open] = {}

    def site(self, prop: StandardValue) -> Site:
        """Where the value of ``prop`` is in what arrived."""
        return self.sites.get(prop, prop.site)

    def read(self, prop: StandardValue, host: StandardEnvoy) -> Tensor:
        """The value of ``prop``, the same tensor for as long as the visit lasts."""
        held = self._open.get(prop)
        if held is not None:
            return held[1]
        current = self.content() if self._open and self.edited() else self.arrived
        view = self.serving.serve(self.site(prop), prop.value, host, current)
        return self.open(prop, host, view)

    def held(self, prop: StandardValue) -> Tensor | None:
        """What the block holds for the value of ``prop``, if it has it open."""
        held = self._open.get(prop)
        return None if held is None else held[1]

    def open(self, prop: StandardValue, host: StandardEnvoy, view: Tensor) -> Tensor:
        """Let the block hold ``view`` for the value of ``prop``."""
        self._open[prop] = (host, view, view._version, view.shape)
        return view

    def replace(self, prop: StandardValue, host: StandardEnvoy, tensor: Tensor) -> None:
        """Make ``tensor`` the value of ``prop``."""
        self._open[prop] = (host, tensor, -1, tensor.shape)

    def edited(self) -> bool:
        """Whether any open value has been changed or replaced."""
        # A loop, for one is asked of every read, and a generator is a call more for each.
        for _, view, version, _ in self._open.values():  # noqa: SIM110
            if version != view._version:
                return True
        return False

    def raw(self) -> Any:
        """What arrived at the location, without any edit."""
        return self.serving.own(self.arrived)

    def content(self) -> Any:
        """What arrived at the location, with every edit made so far in its place."""
        raw = self.raw()
        changed = False
        for prop, (host, view, version, shape) in self._open.items():
            site = self.site(prop)
            if version != view._version:
                if view.shape != shape:
                    raise ValueError(prop.shape_refusal(host, shape, view.shape, _ABOVE))
                prop.require_writable(host, _ABOVE)
                changed = True
            elif not self.serving.linked(site, view):
                continue
            elif changed and not self.serving.shows(site, prop.value, host, raw, view):
                # What it was read from has been edited since.
                continue
            like = site.read(host, raw).tensor
            raw = site.write(host, raw, self.serving.restore(view, like, prop.value))
        return raw

    def changed(self) -> bool:
        """Whether the model has to go on with anything else than what arrived."""
        return any(
            version != view._version or self.serving.linked(self.site(prop), view)
            for prop, (_, view, version, _) in self._open.items()
        )

    def fn(self) -> Any:
        """What to swap in to have the content, with its edits, at the location."""
        return self.serving.edit(self.raw(), self.content())
