"""Defines the descriptor behind every standard value.

Reading ``block.layer_output`` in a trace waits until the forward reaches the value's `Site`,
takes the value out of what arrived there, and hands it to the block in the layout of its `Value`
row, as the engine's `EngineAdapter` does. What the block then does to it is put back into the
model when the block moves on from that location, by its `OpenValues`.
"""

from __future__ import annotations

from typing import Any, overload

import torch
from greenlet import getcurrent
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.eproperty import eproperty
from nnsight.intervention.interleaver import Event, Mediator, OutOfOrderError, Pending
from torch import Tensor

from nnterp.errors import Unavailable
from nnterp.lifetime import Reading
from nnterp.sites.base import Site
from nnterp.sites.two_part import TwoPart
from nnterp.tracing import gradients
from nnterp.tracing.block_state import BlockState
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.open_values import OpenValues
from nnterp.vocabulary.values import Value

#: A value's path, its location, the location where a forward of its tree begins, how often one
#: forward runs its module, and why the module never serves it, or None. It is a bare tuple,
#: because every read unpacks it.
Whereabouts = tuple[str, str, str, int, str | None]


class StandardValue(eproperty):
    """A `StandardValue` is the descriptor of one value of the vocabulary at one site.

    Args:
        value: The vocabulary row.
        site: Where the host's architecture keeps it.
    """

    def __init__(self, value: Value, site: Site) -> None:
        super().__init__(key=value.name, description=value.description)
        self.name = value.name
        self.value = value
        self.site = site
        #: The part that the forward reaches first, for a value in two parts; else None.
        self.earlier = self.at(site.earlier) if isinstance(site, TwoPart) else None
        self.__doc__ = f"``[{value.layout}]``: {value.description}."

    def at(self, site: Site) -> StandardValue:
        """Return a descriptor of the same value at another site."""
        return type(self)(self.value, site)

    def __str__(self) -> str:
        return f"({self.name}) -> [{self.value.layout}]: {self.value.description}"

    def _location(self, obj: Any) -> str:
        return self.site.location(obj)

    @overload
    def __get__(self, obj: None, owner: type | None = None) -> StandardValue: ...
    @overload
    def __get__(self, obj: Any, owner: type | None = None) -> Tensor: ...
    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        if obj is None:
            return self
        try:
            return self.read(obj)
        except AttributeError as error:
            raise self._not_an_attribute(obj, error) from error

    def __set__(self, obj: Any, value: Any) -> None:
        try:
            self._write(obj, value)
        except AttributeError as error:
            raise self._not_an_attribute(obj, error) from error

    def path(self, host: Envoy) -> str:
        """Return the path of the value on ``host``."""
        return f"{host.path}.{self.name}"

    def read(self, host: StandardEnvoy) -> Tensor:
        """Return the value on ``host`` once the forward has reached it, in the value's layout."""
        mediator = Mediator.current(self.path(host))
        opened = self._open_values(host, mediator)
        if not host.engine_adapter.live:
            mediator.transform = opened
            return opened.read(self, host)
        held = opened.held(self)
        if held is None:
            held, is_new_tensor = self._reading(host, opened)
            # A value in two parts is kept open as well: at its next use, the forward may have
            # passed its earlier part.
            if is_new_tensor or self.earlier is not None or self.why_read_only(host) is not None:
                mediator.transform = opened
                opened.open(self, host, held)
            if torch.is_grad_enabled():
                gradients.serve(held, self.path(host), self.site.no_gradient)
        return held

    def _reading(self, host: StandardEnvoy, opened: OpenValues) -> Reading:
        """Read the value from its location's content, with all edits, where tensors are live."""
        return host.engine_adapter.reading(opened.site(self), self.value, host, opened.content())

    def _write(self, host: StandardEnvoy, new: Any) -> None:
        """Make ``new`` the value on ``host``."""
        self.require_writable(host)
        mediator = Mediator.current(self.path(host))
        opened = self._open_values(host, mediator)
        held = opened.held(self)
        if held is None and host.engine_adapter.live:
            held, is_new_tensor = self._reading(host, opened)
            if not is_new_tensor and _same(new, held):
                # It was edited in place in the live tensor, as by ``+=``.
                return
        mediator.transform = opened
        if held is None:
            held = opened.read(self, host)
        tensor = held if new is held else self._accept(host, new, held)
        opened.replace(self, host, tensor)
        if host.engine_adapter.live and torch.is_grad_enabled():
            gradients.serve(tensor, self.path(host), None)

    def _earlier_part(self, host: StandardEnvoy) -> Tensor:
        """Return what is at the site of the part that the forward reaches first."""
        assert self.earlier is not None
        assert isinstance(self.site, TwoPart)
        if not host.engine_adapter.live:
            return self.earlier.read(host)
        mediator = Mediator.current(self.path(host))
        opened = self.earlier._open_values(host, mediator)
        content = None
        if self.site.earlier_of_batch:
            content = host.engine_adapter.of_whole_batch(opened.location, opened.occurrence)
        if content is None:
            content = opened.content()
        return opened.site(self.earlier).read(host, content).tensor

    def _open_values(self, host: StandardEnvoy, mediator: Any) -> OpenValues:
        """Return what the block has open at this location, once the forward has reached it."""
        path, location, beginning, runs, reason = self._whereabouts(host)
        if reason is not None:
            raise Unavailable(f"{path}: {reason}")
        if runs == 1:
            occurrence = mediator.wanted(location)
        else:
            occurrence = self._occurrence(host, mediator, location, beginning, runs)
        state = BlockState.of(mediator)
        opened: Any = mediator.transform
        elsewhere = (
            type(opened) is not OpenValues
            or opened.location != location
            or opened.occurrence != occurrence
        )
        if elsewhere and self.name in host.between:
            getattr(type(host), host.between[self.name]).keep_earlier(host, mediator)
        part = None
        if self.earlier is not None and (elsewhere or self not in opened.sites):
            part = self._kept_part(host, mediator)
            if part is None:
                part = self._earlier_part(host)
        if elsewhere:
            self._require_ahead(mediator, state, location, occurrence, beginning, runs, path)
            # This puts back whatever the block has open, an earlier part just read included.
            if mediator.transform is not None:
                mediator.flush()
            request = tuple.__new__(Pending, (Event.VALUE, location, occurrence, None))
            state.waits_for_value = True
            try:
                arrived = getcurrent().parent.switch(request)
            finally:
                state.waits_for_value = False
            opened = OpenValues(host.engine_adapter, location, occurrence, arrived)
        if part is not None and isinstance(self.site, TwoPart):
            opened.sites[self] = self.site.given(part)
        state.latest_value = path
        if self.value.prefill_only_on:
            # This is asked only now, because only now is the block at the step it asked about.
            reason = host.engine_adapter.unavailable_now(self.value)
            if reason is not None:
                raise Unavailable(f"{path}: {reason}")
        return opened

    @staticmethod
    def _occurrence(
        host: StandardEnvoy, mediator: Any, location: str, beginning: str, runs: int
    ) -> int:
        """Return the occurrence of ``location`` in the last of a step's ``runs``.

        The step is the one the block is at.
        """
        step = mediator.iteration
        if step is None:
            step = max(mediator.occurrence(beginning) - 1, 0)
        # nnsight counts the calls of an operation in a forward's source only from when it was
        # first looked at, so those still to come are counted by the module's runs.
        ahead = step * runs + runs - 1 - mediator.occurrence(f"{host.path}.output")
        return mediator.occurrence(location) + ahead

    def keep_earlier(self, host: StandardEnvoy, mediator: Any) -> None:
        """Keep the part that the forward reaches first, unless the forward has passed it."""
        step = mediator.wanted(self._location(host))
        try:
            part = self._earlier_part(host)
        except OutOfOrderError:
            return
        BlockState.of(mediator).earlier_parts[self.path(host)] = (step, part)

    def _kept_part(self, host: StandardEnvoy, mediator: Any) -> Tensor | None:
        """Return the earlier part if it was kept on this step, or None."""
        kept = BlockState.of(mediator).earlier_parts.get(self.path(host))
        if kept is None or kept[0] != mediator.wanted(self._location(host)):
            return None
        return kept[1]

    def _whereabouts(self, host: StandardEnvoy) -> Whereabouts:
        """Return where this value is on ``host``."""
        if host.engine_adapter.live:
            # Not cached: in each run, the operation that is its location may have to be looked up
            # in the forward's source again.
            return self._find(host)
        known = host.whereabouts
        if self not in known:
            known[self] = self._find(host)
        return known[self]

    def _find(self, host: StandardEnvoy) -> Whereabouts:
        """Find out where this value is on ``host``, or why it is not there."""
        path = self.path(host)
        reason = host.unavailable(self.name)
        if reason is not None:
            return path, "", "", 1, reason
        return path, self._location(host), f"{host.root.path}.input", host.runs, None

    @staticmethod
    def _require_ahead(
        mediator: Any,
        state: BlockState,
        location: str,
        occurrence: int,
        beginning: str,
        runs: int,
        path: str,
    ) -> None:
        """Raise if the forward has passed this value on the step the block is at."""
        passed = mediator.occurrence(location)
        if mediator.iteration is not None:
            late = passed > occurrence
        else:
            # Once it has been given a value of a step, a block follows the model's steps, and
            # would be given the next step's value.
            late = passed > 0 and 0 < mediator.occurrence(beginning) * runs <= passed
        if late:
            after = f" after {state.latest_value}" if state.latest_value else ""
            raise OutOfOrderError(
                f"{path} was asked for{after}, when the forward had passed it. Read it "
                "first, on a line above, and keep it in a variable"
            )

    def require_writable(self, host: StandardEnvoy, how: str = "") -> None:
        """Refuse an edit of a value that is read-only on ``host``; ``how`` says how it was made.

        Raises:
            ValueError: The value is read-only there.
        """
        reason = self.why_read_only(host)
        if reason is not None:
            engine = host.engine_adapter.engine
            raise ValueError(f"{self.path(host)} is read-only on {engine}{how}: {reason}")

    def why_read_only(self, host: StandardEnvoy) -> str | None:
        """Return why ``host`` does not take an edit of this value, or None where it does."""
        if host.engine_adapter.engine not in self.value.writable_on:
            return "the model computes it from other values; edit those instead"
        return self.site.read_only

    def _accept(self, host: StandardEnvoy, new: Any, held: Tensor) -> Tensor:
        """Return ``new`` as a replacement of ``held``, or refuse it with what to do instead."""
        path = self.path(host)
        if not isinstance(new, Tensor):
            raise TypeError(
                f"{path} holds a tensor of shape {tuple(held.shape)} on this request and cannot "
                f"become {new!r}; assign a tensor of that shape"
            )
        if new.shape != held.shape:
            raise ValueError(self.shape_refusal(host, held.shape, new.shape))
        if new.is_meta or new.layout is not torch.strided:
            kind = "meta" if new.is_meta else str(new.layout)
            raise TypeError(f"{path} cannot become a {kind} tensor; assign a dense one with values")
        if not host.engine_adapter.live and new.requires_grad:
            raise TypeError(
                f"{path} takes no gradients on this engine; assign a .detach()ed tensor"
            )
        if new.is_complex() and not held.is_complex():
            raise TypeError(f"{path} is {held.dtype} and cannot hold {new.dtype}; assign its .real")
        return host.engine_adapter.copy_assigned(new.to(held.device, held.dtype), self.value, host)

    def shape_refusal(
        self, host: Envoy, served: torch.Size, offered: torch.Size, how: str = ""
    ) -> str:
        """Return why a value of shape ``offered`` cannot replace one of shape ``served``."""
        return (
            f"{self.path(host)} has shape {tuple(served)} on this request{how}, and a value of "
            f"shape {tuple(offered)} cannot take its place: edit the rows you mean instead, as in "
            f"`{self.name}[:, positions] = ...`"
        )

    def _not_an_attribute(self, host: Envoy, error: AttributeError) -> RuntimeError:
        # Python takes an AttributeError out of a descriptor for a missing attribute and calls
        # __getattr__, which would blame the value's name for whatever went wrong inside.
        return RuntimeError(f"{self.path(host)}: AttributeError: {error}")


def _same(new: Any, held: Tensor) -> bool:
    """Return whether ``new`` is ``held``, or a view of the same part of the same tensor."""
    if new is held or not isinstance(new, Tensor) or new._base is None:
        return new is held
    return (
        new._base is held._base
        and new.storage_offset() == held.storage_offset()
        and (new.shape, new.stride()) == (held.shape, held.stride())
    )
