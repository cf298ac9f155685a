"""Where a value lives in a run.

nnsight hands every module's input and output to a block as the forward reaches them,
each under a *location* such as ``model.model.layers.3.output``. What arrives there is
whatever the architecture passes around: a bare tensor, a tuple, a pair whose sum is the
residual stream, an ``(args, kwargs)`` call. A `Site` says at which location a value
lives and how to take it out of, and put it back into, what arrives.

A family is mostly a choice of sites, so they are small, frozen, and know no engine.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input, replace_first_input
from torch import Tensor


class Reading(NamedTuple):
    """A value taken out of what arrived at its location.

    Attributes:
        tensor: The value.
        fresh: Whether reading computed a new tensor, so that editing it in place would
            not reach the model by itself.
    """

    tensor: Tensor
    fresh: bool = False


class Site(Protocol):
    """Where a value lives, and how to read and replace it there.

    One with a ``read_only``, the reason in words, is not written.
    """

    def location(self, host: Envoy) -> str:
        """The nnsight location the value is read at."""

    def read(self, host: Envoy, raw: Any) -> Reading:
        """The value, out of what arrived at the location."""

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        """What arrived, with ``tensor`` in the value's place; the rest untouched."""


def relative(host: Envoy, path: str) -> Envoy:
    """The envoy at ``path`` from ``host``: ``"."`` is itself, ``"..x"`` its parent's ``x``."""
    names = path.lstrip(".")
    envoy = host
    for _ in range(len(path) - len(names) - 1):
        parent = envoy.parent
        if parent is None:
            raise ValueError(f"{path!r} leads above the root from {host.path!r}")
        envoy = parent
    return envoy.get(names) if names else envoy


def found(host: Envoy, path: str) -> Envoy | None:
    """The envoy at ``path`` from ``host``; None where there is no module."""
    try:
        envoy = relative(host, path)
    except AttributeError:
        return None
    return envoy if isinstance(envoy, Envoy) else None


@dataclass(frozen=True)
class Output:
    """What a module returns: the tensor, or one element of the tuple around it."""

    of: str = "."
    index: int = 0

    def location(self, host: Envoy) -> str:
        return f"{relative(host, self.of).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw if isinstance(raw, Tensor) else raw[self.index])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        if isinstance(raw, Tensor):
            return tensor
        return (*raw[: self.index], tensor, *raw[self.index + 1 :])


@dataclass(frozen=True)
class OutputField:
    """A named field of the record a module returns (``logits`` of a transformers model)."""

    field: str
    of: str = "."

    def location(self, host: Envoy) -> str:
        return f"{relative(host, self.of).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(getattr(raw, self.field))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        replaced = copy.copy(raw)
        setattr(replaced, self.field, tensor)
        return replaced


@dataclass(frozen=True)
class Argument:
    """An argument a module is called with, by the name its ``forward`` gives it.

    By name and not by position, because families order the same arguments differently
    and pass them positionally or by keyword as they please.
    """

    name: str
    of: str = "."

    def location(self, host: Envoy) -> str:
        return f"{relative(host, self.of).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.get(host, raw))

    def get(self, host: Envoy, raw: Any) -> Any:
        args, kwargs = raw
        position = self._position(host)
        return args[position] if position < len(args) else kwargs.get(self.name)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        position = self._position(host)
        if position < len(args):
            return ((*args[:position], tensor, *args[position + 1 :]), kwargs)
        return (args, {**kwargs, self.name: tensor})

    def _position(self, host: Envoy) -> int:
        return parameters(type(relative(host, self.of)._module).forward).index(self.name)


@dataclass(frozen=True)
class FirstArgument:
    """The first argument a module is called with, whatever its ``forward`` names it."""

    of: str = "."

    def location(self, host: Envoy) -> str:
        return f"{relative(host, self.of).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(first_input(*raw))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return replace_first_input(*raw, tensor)


def untouched(edited: Tensor, served: Tensor) -> Tensor:
    """Where ``edited`` still is what was ``served``, not-a-numbers included."""
    return (edited == served) | (edited.isnan() & served.isnan())


@cache
def parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The names of what a module's ``forward`` takes."""
    return tuple(inspect.signature(forward).parameters)[1:]  # without self


@dataclass(frozen=True)
class FusedInput:
    """The residual stream entering a block that is handed it in two addends.

    A fused block is called with its predecessor's last contribution and the residual it
    has not been added to yet; the first block is handed the stream alone.
    """

    of: str = "."
    hidden: str = "hidden_states"
    residual: str = "residual"

    def location(self, host: Envoy) -> str:
        return self._hidden.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        residual = self._residual.get(host, raw)
        if residual is None:
            return self._hidden.read(host, raw)
        return Reading(self._hidden.get(host, raw) + residual, fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        residual = self._residual.get(host, raw)
        if residual is None:
            return self._hidden.write(host, raw, tensor)
        hidden, residual = _as_addends(tensor, self._hidden.get(host, raw), residual)
        return self._residual.write(host, self._hidden.write(host, raw, hidden), residual)

    @property
    def _hidden(self) -> Argument:
        return Argument(self.hidden, self.of)

    @property
    def _residual(self) -> Argument:
        return Argument(self.residual, self.of)


@dataclass(frozen=True)
class FusedOutput:
    """The residual stream leaving a block that returns it in two addends."""

    def location(self, host: Envoy) -> str:
        return f"{host.path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        hidden, residual = raw
        return Reading(hidden + residual, fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return _as_addends(tensor, *raw)


def _as_addends(stream: Tensor, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The addends of an edited ``stream``, which left alone is ``hidden + residual``.

    The norm that adds them does not round their sum as the stream is rounded, so numbers left
    alone keep their addends. Zero plus an edit is the edit in every dtype, and stays so where
    the first addend is summed over tensor-parallel ranks.
    """
    kept = untouched(stream, hidden + residual)
    return hidden.where(kept, 0.0), residual.where(kept, stream)


@dataclass(frozen=True)
class Handoff:
    """A value the engine hands over by name, from outside any module."""

    name: str

    def location(self, host: Envoy) -> str:
        return f"{host.path}.{self.name}"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return tensor


@dataclass(frozen=True)
class NextTokenProbabilities:
    """The softmax of the last position of the logits at ``logits``."""

    logits: Site

    def location(self, host: Envoy) -> str:
        return self.logits.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        logits = self.logits.read(host, raw).tensor
        last = logits[:, -1] if logits.ndim == 3 else logits
        return Reading(last.softmax(-1, dtype=torch.float32), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("probabilities are derived from logits and not written")


@dataclass(frozen=True)
class Nowhere:
    """A value that never is a tensor here; the host says why, before it is looked for."""

    def location(self, host: Envoy) -> str:
        raise NotImplementedError(f"{host.path} holds it nowhere")

    def read(self, host: Envoy, raw: Any) -> Reading:
        raise NotImplementedError(f"{host.path} holds it nowhere")

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError(f"{host.path} holds it nowhere")


@dataclass(frozen=True)
class FromFamily:
    """A site of the model as a whole that its family may place elsewhere.

    Blocks and their parts have a class per family to say so; the model has one class,
    so there the family module says it, under ``attribute``.
    """

    attribute: str
    default: Site

    def _site(self, host: Any) -> Site:
        return getattr(host.family, self.attribute, self.default)

    def location(self, host: Envoy) -> str:
        return self._site(host).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return self._site(host).read(host, raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self._site(host).write(host, raw, tensor)
