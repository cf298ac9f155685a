"""The descriptor behind every standard value.

Reading ``block.layer_output`` in a trace waits until the forward reaches the value's
`Site`, takes the value out of what arrived there, and hands it to the block in the
layout of its `Value` row, as the engine's `Serving` does. What the block then does to it
goes back into the model when the `Visit` of that place ends.
"""

from __future__ import annotations

from typing import Any, overload

import torch
from greenlet import getcurrent
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.eproperty import eproperty
from nnsight.intervention.interleaver import Event, Mediator, OutOfOrderError, Pending
from torch import Tensor

from . import gradients
from .composed import Joined
from .errors import Unavailable
from .serving import StandardEnvoy
from .sites import Reading, Site, no_gradient
from .values import Value
from .visit import Visit

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
        self.earlier = self.at(site.earlier) if isinstance(site, Joined) else None
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
        visit = self._visit(host, mediator)
        if not host.serving.live:
            mediator.transform = visit
            return visit.read(self, host)
        held = visit.held(self)
        if held is None:
            held, fresh = self.look(host, visit)
            # One in two parts as well, for the forward may have passed the first by the next use.
            if fresh or self.earlier is not None or self.why_read_only(host) is not None:
                mediator.transform = visit
                visit.open(self, host, held)
            if torch.is_grad_enabled():
                gradients.serve(held, self.path(host), no_gradient(self.site))
        return held

    def look(self, host: StandardEnvoy, visit: Visit) -> Reading:
        """The value in what the block has made of what arrived, where tensors are live."""
        return host.serving.look(visit.site(self), self.value, host, visit.content())

    def _write(self, host: StandardEnvoy, new: Any) -> None:
        self.require_writable(host)
        mediator = Mediator.current(self.path(host))
        visit = self._visit(host, mediator)
        held = visit.held(self)
        if held is None and host.serving.live:
            held, fresh = self.look(host, visit)
            if not fresh and _same(new, held):
                # Edited where it is.
                return
        mediator.transform = visit
        if held is None:
            held = visit.read(self, host)
        tensor = held if new is held else self._accept(host, new, held)
        visit.replace(self, host, tensor)
        if host.serving.live and torch.is_grad_enabled():
            gradients.serve(tensor, self.path(host), None)

    def _earlier_part(self, host: StandardEnvoy) -> Tensor:
        """What is where the part is that the forward reaches first."""
        assert self.earlier is not None
        assert isinstance(self.site, Joined)
        if not host.serving.live:
            return self.earlier.read(host)
        mediator = Mediator.current(self.path(host))
        visit = self.earlier._visit(host, mediator)
        whole = self.site.undivided
        content = host.serving.undivided(visit) if whole else visit.content()
        return visit.site(self.earlier).read(host, content).tensor

    def _visit(self, host: StandardEnvoy, mediator: Any) -> Visit:
        """The open visit of this value's location, once the forward has got there."""
        path, location, beginning, runs, reason = self._whereabouts(host)
        if reason is not None:
            raise Unavailable(f"{path}: {reason}")
        if runs == 1:
            occurrence = mediator.wanted(location)
        else:
            occurrence = self._occurrence(host, mediator, location, beginning, runs)
        visit: Any = mediator.transform
        elsewhere = (
            type(visit) is not Visit or visit.location != location or visit.occurrence != occurrence
        )
        if elsewhere and self.name in host.between:
            getattr(type(host), host.between[self.name]).keep_earlier(host, mediator)
        part = None
        if self.earlier is not None and (elsewhere or self not in visit.sites):
            part = self._kept_part(host, mediator)
            if part is None:
                part = self._earlier_part(host)
        if elsewhere:
            self._require_ahead(mediator, location, occurrence, beginning, runs, path)
            # What reading an earlier part has opened is among it.
            if mediator.transform is not None:
                mediator.flush()
            request = tuple.__new__(Pending, (Event.VALUE, location, occurrence, host.serving))
            visit = Visit(host.serving, location, occurrence, getcurrent().parent.switch(request))
        if part is not None and isinstance(self.site, Joined):
            visit.sites[self] = self.site.given(part)
        mediator.latest_value = path
        if self.value.prefill_only_on:
            # Only now is the block at the step it asked about.
            reason = host.serving.unavailable_now(self.value)
            if reason is not None:
                raise Unavailable(f"{path}: {reason}")
        return visit

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
        mediator.__dict__.setdefault("kept_parts", {})[self.path(host)] = (step, part)

    def _kept_part(self, host: StandardEnvoy, mediator: Any) -> Tensor | None:
        """The earlier part, if it was kept on this step."""
        kept = mediator.__dict__.get("kept_parts", {}).get(self.path(host))
        if kept is None or kept[0] != mediator.wanted(self._location(host)):
            return None
        return kept[1]

    def _whereabouts(self, host: StandardEnvoy) -> Whereabouts:
        """Where this value is on ``host``."""
        if host.serving.live:
            # Its location may have to be opened in the forward's source, anew in each run.
            return self._find(host)
        known = host.__dict__.get("whereabouts")
        if known is None:
            known = host.__dict__["whereabouts"] = {}
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
        mediator: Any, location: str, occurrence: int, beginning: str, runs: int, path: str
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
            latest = getattr(mediator, "latest_value", None)
            after = f" after {latest}" if latest else ""
            raise OutOfOrderError(
                f"{path} was asked for{after}, when the forward had passed it. Read it "
                "first, on a line above, and keep it in a variable"
            )

    def require_writable(self, host: StandardEnvoy, how: str = "") -> None:
        """Refuse an edit of a value that is only read on ``host``, made as ``how`` says."""
        reason = self.why_read_only(host)
        if reason is not None:
            engine = host.serving.engine
            raise ValueError(f"{self.path(host)} is read-only on {engine}{how}: {reason}")

    def why_read_only(self, host: StandardEnvoy) -> str | None:
        """Why ``host`` does not take an edit of this value, or None where it does."""
        if host.serving.engine not in self.value.writable_on:
            return "the model computes it from other values; edit those instead"
        return getattr(self.site, "read_only", None)

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
        if not host.serving.live and new.requires_grad:
            raise TypeError(
                f"{path} takes no gradients on this engine; assign a .detach()ed tensor"
            )
        if new.is_complex() and not held.is_complex():
            raise TypeError(f"{path} is {held.dtype} and cannot hold {new.dtype}; assign its .real")
        return host.serving.adopt(new.to(held.device, held.dtype), self.value, host)

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
