"""The values a block has open at the place it is at.

While a block stays at one location, reads of one value are one tensor, an assignment
replaces it, and a value derived from others (scores from queries and keys) sees their
edits. When the block moves on, the values that changed, and only those, are put back into
what the model carries on with; where gradients are kept, those that did not as well, so that
it is made of them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.sites.base import Site
from nnterp.tracing.engine_adapter import EngineAdapter
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.vocabulary.values import Value

#: Where an edit in place was made that is refused when the block moves on.
_ABOVE = ", and was edited in place on a line above"

#: One open value: its host, the tensor the block holds, and the version and shape it had when
#: it was handed over; a bare tuple, for one is made with every read.
Open = tuple[StandardEnvoy, Tensor, int, torch.Size]


class Opened(Protocol):
    """What can be open: a standard value, as its descriptor."""

    value: Value
    site: Site

    def require_writable(self, host: StandardEnvoy, how: str = "") -> None:
        """Refuse an edit of a value that is only read on ``host``, made as ``how`` says."""

    def shape_refusal(
        self, host: Envoy, served: torch.Size, offered: torch.Size, how: str = ""
    ) -> str:
        """Why a value of shape ``offered`` cannot take the place of one of shape ``served``."""


class OpenValues:
    """The values a block has open at one occurrence of one location.

    It stands where nnsight keeps a read's write-back, and answers to the same names:
    nnsight asks ``fn`` for what to swap in when the block moves on.
    """

    # nnsight's own views of a location are never answered from here.
    view = None
    key = None

    __slots__ = ("_open", "arrived", "engine_adapter", "location", "occurrence", "sites")

    def __init__(
        self, engine_adapter: EngineAdapter, location: str, occurrence: int, arrived: Any
    ) -> None:
        self.engine_adapter = engine_adapter
        self.location = location
        self.occurrence = occurrence
        self.arrived = arrived
        #: The sites of values whose earlier part had to be read first.
        self.sites: dict[Opened, Site] = {}
        self._open: dict[Opened, Open] = {}

    def site(self, prop: Opened) -> Site:
        """Where the value of ``prop`` is in what arrived."""
        return self.sites.get(prop, prop.site)

    def read(self, prop: Opened, host: StandardEnvoy) -> Tensor:
        """The value of ``prop``, the same tensor for as long as the block stays here."""
        held = self._open.get(prop)
        if held is not None:
            return held[1]
        current = self.content() if self._open and self.edited() else self.arrived
        view = self.engine_adapter.serve(self.site(prop), prop.value, host, current)
        return self.open(prop, host, view)

    def held(self, prop: Opened) -> Tensor | None:
        """What the block holds for the value of ``prop``, if it has it open."""
        held = self._open.get(prop)
        return None if held is None else held[1]

    def open(self, prop: Opened, host: StandardEnvoy, view: Tensor) -> Tensor:
        """Let the block hold ``view`` for the value of ``prop``."""
        self._open[prop] = (host, view, view._version, view.shape)
        return view

    def replace(self, prop: Opened, host: StandardEnvoy, tensor: Tensor) -> None:
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
        return self.engine_adapter.own_part(self.arrived)

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
            elif not self.engine_adapter.carries_gradient(site, view):
                continue
            elif changed and not self.engine_adapter.is_current(site, prop.value, host, raw, view):
                # What it was read from has been edited since.
                continue
            like = site.read(host, raw).tensor
            raw = site.write(host, raw, self.engine_adapter.restore(view, like, prop.value))
        return raw

    def changed(self) -> bool:
        """Whether the model has to go on with anything else than what arrived."""
        return any(
            version != view._version or self.engine_adapter.carries_gradient(self.site(prop), view)
            for prop, (_, view, version, _) in self._open.items()
        )

    def fn(self) -> Any:
        """What to swap in to have the content, with its edits, at the location."""
        return self.engine_adapter.edit(self.raw(), self.content())
