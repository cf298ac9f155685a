"""Keeps the values that a block has open at the location it is at.

While a block stays at one location, every read of a value gives the same tensor, an assignment
replaces it, and a value derived from others (scores from queries and keys) sees their edits. When
the block moves on, the values that changed, and only those, are put back into what the model
carries on with. Where gradients are kept, unchanged values are put back as well, so that the
model computes on from them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.sites.base import Site
from nnterp.tracing.engine_adapter import EngineAdapter
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.swap import TAKEN
from nnterp.vocabulary.values import Value

#: Says where an in-place edit was made that is refused only when the block moves on.
_ABOVE = ", and was edited in place on a line above"

#: One open value: its host, the tensor the block holds, and the version and shape it had when
#: it was handed over. It is a bare tuple, because one is made with every read.
Open = tuple[StandardEnvoy, Tensor, int, torch.Size]


class Opened(Protocol):
    """`Opened` is what can be open: a standard value, as its descriptor."""

    value: Value
    site: Site

    def require_writable(self, host: StandardEnvoy, how: str = "") -> None:
        """Refuse an edit of a value that is read-only on ``host``; ``how`` says how it was made."""

    def shape_refusal(
        self, host: Envoy, served: torch.Size, offered: torch.Size, how: str = ""
    ) -> str:
        """Return why a value of shape ``offered`` cannot replace one of shape ``served``."""


class OpenValues:
    """`OpenValues` holds the values a block has open at one occurrence of one location.

    It is kept where nnsight keeps a read's write-back (the mediator's ``transform``) and has the
    same attributes: nnsight calls ``fn`` for what to swap in when the block moves on.

    Attributes:
        engine_adapter: How the engine hands values over.
        location: The nnsight location.
        occurrence: Which occurrence of the location in the run.
        arrived: What arrived there.
        sites: The sites of values whose earlier part had to be read first.
    """

    # nnsight's own reads of a location are never served from here.
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
        """Return the site of the value of ``prop`` in what arrived."""
        return self.sites.get(prop, prop.site)

    def read(self, prop: Opened, host: StandardEnvoy) -> Tensor:
        """Return the value of ``prop``: the same tensor for as long as the block stays here."""
        held = self._open.get(prop)
        if held is not None:
            return held[1]
        current = self.content() if self._open and self.edited() else self.arrived
        view = self.engine_adapter.serve(self.site(prop), prop.value, host, current)
        return self.open(prop, host, view)

    def held(self, prop: Opened) -> Tensor | None:
        """Return what the block holds for the value of ``prop``, or None if it is not open."""
        held = self._open.get(prop)
        return None if held is None else held[1]

    def open(self, prop: Opened, host: StandardEnvoy, view: Tensor) -> Tensor:
        """Record that the block holds ``view`` for the value of ``prop``, and return ``view``."""
        self._open[prop] = (host, view, view._version, view.shape)
        return view

    def replace(self, prop: Opened, host: StandardEnvoy, tensor: Tensor) -> None:
        """Make ``tensor`` the value of ``prop``."""
        self._open[prop] = (host, tensor, -1, tensor.shape)

    def edited(self) -> bool:
        """Return whether any open value has been changed or replaced."""
        # A loop, because every read asks this, and a generator costs one call more per value.
        for _, view, version, _ in self._open.values():  # noqa: SIM110
            if version != view._version:
                return True
        return False

    def raw(self) -> Any:
        """Return what arrived at the location, without any edit."""
        return self.engine_adapter.own_part(self.arrived)

    def content(self) -> Any:
        """Return what arrived at the location, with every edit made so far in its place."""
        return self._edited(self.raw())

    def _edited(self, raw: Any) -> Any:
        """Return ``raw``, what arrived, with every edit; parts without one are the same objects."""
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
        """Return whether the model must go on with anything other than what arrived."""
        return any(
            version != view._version or self.engine_adapter.carries_gradient(self.site(prop), view)
            for prop, (_, view, version, _) in self._open.items()
        )

    def fn(self) -> Any:
        """Return what to swap in at the location for the model to go on with the edits."""
        if self._edited_together():
            return TAKEN
        raw = self.raw()
        return self.engine_adapter.edit(raw, self._edited(raw))

    def _edited_together(self) -> bool:
        """Hand over the block's edit, if it is one, to be made together with other blocks'."""
        edited = [
            (prop, *entry) for prop, entry in self._open.items() if entry[2] != entry[1]._version
        ]
        if len(edited) != 1 or self.sites:
            return False
        [(prop, host, view, _, shape)] = edited
        if view.shape != shape:
            return False
        prop.require_writable(host, _ABOVE)
        return self.engine_adapter.edits_together(prop.site, prop.value, host, self.arrived, view)
