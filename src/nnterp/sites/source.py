"""Reads values inside a module's forward, as its source names them (transformers only).

nnsight makes the calls and assignments of a forward addressable and numbers them, and both it
and transformers renumber them from release to release. Here an operation is found by what it
calls or binds: the last one of that name, unless a site says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.source import Source, SourceEnvoy
from torch import Tensor

from nnterp.errors import Unavailable
from nnterp.lifetime import Reading, copied
from nnterp.sites.base import Site

#: The axes of a tensor that is ``[batch, heads, seq, feature]`` already, as queries are served.
AS_IT_IS = (0, 1, 2, 3)

#: The axes of a tensor that is ``[batch, seq, heads, feature]``.
BY_TOKEN = (0, 2, 1, 3)

Axes = tuple[int, ...]


def last_call(source: Source, called: str) -> SourceEnvoy:
    """Return the last operation of ``source`` that calls, or binds, ``called``.

    Raises:
        Unavailable: There is none; the message shows the forward as nnsight reads it.
    """
    return _named(source, called, -1)


def _named(source: Source, called: str, which: int) -> SourceEnvoy:
    """Return operation number ``which`` of those in ``source`` that call or bind ``called``."""
    names = [name for name in source.names if name.rpartition("_")[0] == called]
    if not names:
        raise Unavailable(f"the forward makes no call to {called}:\n{source!r}")
    return source.node(names[which])


@dataclass(frozen=True)
class _Operation(Site):
    """`_Operation` is the base of sites at an operation of the host's forward.

    Attributes:
        name: What the operation calls, or the variable it binds, with dots as underscores:
            nnsight's name without its number.
        inside: The function called by the forward that the operation is in, if it is not in the
            forward itself.
        which: Which of the operations of that name; the last by default.
    """

    name: str
    inside: str | None = None
    which: int = -1

    def operation(self, host: Envoy) -> SourceEnvoy:
        """Return nnsight's envoy of the operation."""
        forward = host.source
        source = forward if self.inside is None else last_call(forward, self.inside).source
        return _named(source, self.name, self.which)


@dataclass(frozen=True)
class OperationInput(_Operation):
    """An `OperationInput` is the first positional argument of an operation of the forward."""

    def location(self, host: Envoy) -> str:
        return f"{self.operation(host).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw[0][0])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        return ((tensor, *args[1:]), kwargs)


@dataclass(frozen=True)
class OperationOutput(_Operation):
    """An `OperationOutput` is what an operation of the forward returns or binds to a variable.

    Attributes:
        index: Which element, if it is a tuple.
        axes: The tensor's axes in the order they are served in: for queries, keys and values those
            of batch, heads, seq and feature. A tensor with one axis less has its heads side by side
            in the last one.
    """

    index: int = 0
    axes: Axes = AS_IT_IS

    def location(self, host: Envoy) -> str:
        return f"{self.operation(host).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        tensor = raw if isinstance(raw, Tensor) else raw[self.index]
        if tensor.ndim < len(self.axes):
            tensor = tensor.unflatten(-1, (-1, host.root.head_dim))
        return Reading(_ordered(tensor, self.axes))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        tensor = _restored(tensor, self.axes)
        if isinstance(raw, Tensor):
            return tensor.flatten(-2) if raw.ndim < len(self.axes) else tensor
        return (*raw[: self.index], tensor, *raw[self.index + 1 :])


def _ordered(tensor: Tensor, axes: Axes) -> Tensor:
    """Return ``tensor`` with its ``axes`` in order."""
    # The tensor itself wherever possible: gradients reach it, and would not reach a view of it.
    return tensor if axes == tuple(sorted(axes)) else tensor.permute(axes)


def _restored(tensor: Tensor, axes: Axes) -> Tensor:
    """Undo `_ordered`."""
    return _ordered(tensor, tuple(axes.index(axis) for axis in sorted(axes)))


@dataclass(frozen=True)
class AttentionArgument(Site):
    """An `AttentionArgument` is the queries, keys or values of this step, as passed to a function.

    It is read as ``[batch, heads, seq, feature]``. With a cache, the keys and values that are
    passed are those of the whole sequence, of which the last are this step's.

    Attributes:
        called: The function, with dots as underscores.
        position: The position of the argument.
        queries: The position of the argument that holds the queries.
        axes: Which axes of the argument are batch, heads, seq and feature.
    """

    called: str
    position: int
    queries: int = 0
    axes: Axes = AS_IT_IS

    def location(self, host: Envoy) -> str:
        return f"{last_call(host.source, self.called).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        passed = raw[0][self.position]
        tensor = _ordered(passed, self.axes)
        earlier = self._earlier(raw)
        own = tensor[:, :, earlier:] if earlier else tensor
        if sum(other is passed for other in raw[0]) > 1:
            # If one tensor is passed as keys and as values, an edit of one must not be an edit of
            # the other.
            return Reading(copied(own), is_new_tensor=True)
        return Reading(own)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        earlier = self._earlier(raw)
        if earlier:
            held = _ordered(args[self.position], self.axes)
            tensor = torch.cat([held[:, :, :earlier], tensor], dim=2)
        passed = _restored(tensor, self.axes)
        return ((*args[: self.position], passed, *args[self.position + 1 :]), kwargs)

    def _earlier(self, raw: Any) -> int:
        """Return the number of keys of earlier steps, which come out of a cache."""
        return raw[0][self.position].shape[self.axes[2]] - raw[0][self.queries].shape[2]
