"""The descriptor behind every standard value.

Reading ``block.layer_output`` in a trace waits until the forward reaches the value's
`Site`, takes the value out of what arrived there, and hands it to the block in the
layout of its `Value` row, as the engine's `EngineAdapter` does. What the block then does to it
goes back into the model when the `OpenValues` of that place ends.
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

#: A value's path, its location, where a forward of its tree begins, how often one runs its
#: module, and why the module never serves it; bare too, for every read takes it apart.
Whereabouts = tuple[str, str, str, int, str | None]


class StandardValue(eproperty):
    """One value of the vocabulary, at one site.

    Args:
        value: The vocabulary row.
        site: Where the host's architecture keeps it.
    """

    def __init__(self, value: Value, site: Site) -> None:
        super().__init__(key=value.name, description=value.description)
        self.name = value.name
        self.value = value
        self.site = site
        #: The part of the value that the forward reaches first, where it comes in two.
        self.earlier = self.at(site.earlier) if isinstance(site, TwoPart) else None
        self.__doc__ = f"``[{value.layout}]``: {value.description}."

    def at(self, site: Site) -> StandardValue:
        """The same value at another site."""
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
        return f"{host.path}.{self.name}"

    def read(self, host: StandardEnvoy) -> Tensor:
        """The value on ``host``, once the forward has got there."""
        mediator = Mediator.current(self.path(host))
        opened = self._open_values(host, mediator)
        if not host.engine_adapter.live:
            mediator.transform = opened
            return opened.read(self, host)
        held = opened.held(self)
        if held is None:
            held, is_new_tensor = self._reading(host, opened)
            # One in two parts as well, for the forward may have passed the first by the next use.
            if is_new_tensor or self.earlier is not None or self.why_read_only(host) is not None:
                mediator.transform = opened
                opened.open(self, host, held)
            if torch.is_grad_enabled():
                gradients.serve(held, self.path(host), self.site.no_gradient)
        return held

    def _reading(self, host: StandardEnvoy, opened: OpenValues) -> Reading:
        """The value in what the block has made of what arrived, where tensors are live."""
        return host.engine_adapter.reading(opened.site(self), self.value, host, opened.content())

    def _write(self, host: StandardEnvoy, new: Any) -> None:
        self.require_writable(host)
        mediator = Mediator.current(self.path(host))
        opened = self._open_values(host, mediator)
        held = opened.held(self)
        if held is None and host.engine_adapter.live:
            held, is_new_tensor = self._reading(host, opened)
            if not is_new_tensor and _same(new, held):
                # Edited where it is.
                return
        mediator.transform = opened
        if held is None:
            held = opened.read(self, host)
        tensor = held if new is held else self._accept(host, new, held)
        opened.replace(self, host, tensor)
        if host.engine_adapter.live and torch.is_grad_enabled():
            gradients.serve(tensor, self.path(host), None)

    def _earlier_part(self, host: StandardEnvoy) -> Tensor:
        """What is where the part is that the forward reaches first."""
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
        """What the block has open at this value's location, once the forward has got there."""
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
            # What reading an earlier part has opened is among it.
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
            # Only now is the block at the step it asked about.
            reason = host.engine_adapter.unavailable_now(self.value)
            if reason is not None:
                raise Unavailable(f"{path}: {reason}")
        return opened

    @staticmethod
    def _occurrence(
        host: StandardEnvoy, mediator: Any, location: str, beginning: str, runs: int
    ) -> int:
        """The occurrence of ``location`` in the last of ``runs`` on the step the block is at."""
        step = mediator.iteration
        if step is None:
            step = max(mediator.occurrence(beginning) - 1, 0)
        # A call in a forward's source is counted from when it was first looked at.
        ahead = step * runs + runs - 1 - mediator.occurrence(f"{host.path}.output")
        return mediator.occurrence(location) + ahead

    def keep_earlier(self, host: StandardEnvoy, mediator: Any) -> None:
        """Read the part that the forward reaches first, unless it has passed it, and keep it."""
        step = mediator.wanted(self._location(host))
        try:
            part = self._earlier_part(host)
        except OutOfOrderError:
            return
        BlockState.of(mediator).earlier_parts[self.path(host)] = (step, part)

    def _kept_part(self, host: StandardEnvoy, mediator: Any) -> Tensor | None:
        """The earlier part, if it was kept on this step."""
        kept = BlockState.of(mediator).earlier_parts.get(self.path(host))
        if kept is None or kept[0] != mediator.wanted(self._location(host)):
            return None
        return kept[1]

    def _whereabouts(self, host: StandardEnvoy) -> Whereabouts:
        """Where this value is on ``host``."""
        if host.engine_adapter.live:
            # Its location may have to be opened in the forward's source, anew in each run.
            return self._find(host)
        known = host.whereabouts
        if self not in known:
            known[self] = self._find(host)
        return known[self]

    def _find(self, host: StandardEnvoy) -> Whereabouts:
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
        """Raise where the forward has passed this value on the step the block is at."""
        passed = mediator.occurrence(location)
        if mediator.iteration is not None:
            late = passed > occurrence
        else:
            # Past its first value of a step, a block follows the model, and would be
            # given the next step's.
            late = passed > 0 and 0 < mediator.occurrence(beginning) * runs <= passed
        if late:
            after = f" after {state.latest_value}" if state.latest_value else ""
            raise OutOfOrderError(
                f"{path} was asked for{after}, when the forward had passed it. Read it "
                "first, on a line above, and keep it in a variable"
            )

    def require_writable(self, host: StandardEnvoy, how: str = "") -> None:
        """Refuse an edit of a value that is only read on ``host``, made as ``how`` says."""
        reason = self.why_read_only(host)
        if reason is not None:
            engine = host.engine_adapter.engine
            raise ValueError(f"{self.path(host)} is read-only on {engine}{how}: {reason}")

    def why_read_only(self, host: StandardEnvoy) -> str | None:
        """Why ``host`` does not take an edit of this value, or None where it does."""
        if host.engine_adapter.engine not in self.value.writable_on:
            return "the model computes it from other values; edit those instead"
        return self.site.read_only

    def _accept(self, host: StandardEnvoy, new: Any, held: Tensor) -> Tensor:
        """``new`` as a replacement of ``held``, or a refusal that says what to do."""
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
        return (
            f"{self.path(host)} has shape {tuple(served)} on this request{how}, and a value of "
            f"shape {tuple(offered)} cannot take its place: edit the rows you mean instead, as in "
            f"`{self.name}[:, positions] = ...`"
        )

    def _not_an_attribute(self, host: Envoy, error: AttributeError) -> RuntimeError:
        # An AttributeError out of a property is taken for a missing attribute, and
        # __getattr__ would blame the value's name for whatever went wrong inside.
        return RuntimeError(f"{self.path(host)}: AttributeError: {error}")


def _same(new: Any, held: Tensor) -> bool:
    """Whether ``new`` is ``held``, or the same part of the same tensor."""
    if new is held or not isinstance(new, Tensor) or new._base is None:
        return new is held
    return (
        new._base is held._base
        and new.storage_offset() == held.storage_offset()
        and (new.shape, new.stride()) == (held.shape, held.stride())
    )
