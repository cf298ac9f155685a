"""Attention that transformers computes in a module's own forward, without an interface.

Older families write the products and the softmax out, each in its own words, so each says
under which names of its forward the values are. nnsight makes calls and assignments of a
forward addressable alike: a value is what a variable is bound to, or what a call returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.source import Source, SourceEnvoy
from torch import Tensor

from .. import values
from ..composed import Elsewhere, Joined, Mapped
from ..eproperty import StandardValue
from ..sites import FirstArgument, Nowhere, Output, Reading, Site
from .attention import Masked, last_call
from .layer import Live

#: The axes of a tensor that already has those of queries, keys and values.
AS_IT_IS = (0, 1, 2, 3)

#: Those of one whose heads come after its tokens.
BY_TOKEN = (0, 2, 1, 3)

Axes = tuple[int, ...]

_PATTERN = (values.ATTENTION_SCORES.name, values.ATTENTION_PROBABILITIES.name)


def _opened(host: Envoy, inside: str | None) -> Source:
    return host.source if inside is None else last_call(host.source, inside).source


def _operation(host: Envoy, name: str, inside: str | None, which: int) -> SourceEnvoy:
    source = _opened(host, inside)
    if which == -1:
        return last_call(source, name)
    names = [own for own in source.names if own.rpartition("_")[0] == name]
    return source.node(names[which])


@dataclass(frozen=True)
class Bound:
    """What a variable of the forward is bound to, or a call in it returns.

    Attributes:
        name: The variable, or what is called, dots as underscores.
        index: Which element, where it is a tuple.
        axes: Its axes in the order batch, heads, seq, feature. Where it has one less, the last
            is that of heads side by side.
        inside: The function of the forward that it is in, if not in the forward itself.
        which: Which one of that name, the last by default.
    """

    name: str
    index: int = 0
    axes: Axes = AS_IT_IS
    inside: str | None = None
    which: int = -1

    def location(self, host: Envoy) -> str:
        return f"{_operation(host, self.name, self.inside, self.which).path}.output"

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
    # The tensor itself wherever it can be, which gradients reach and a view of it they do not.
    return tensor if axes == tuple(sorted(axes)) else tensor.permute(axes)


def _restored(tensor: Tensor, axes: Axes) -> Tensor:
    return _ordered(tensor, tuple(axes.index(axis) for axis in sorted(axes)))


@dataclass(frozen=True)
class Passed:
    """Queries, keys or values, as they are passed to a function, by position.

    Attributes:
        called: The function, dots as underscores; its first argument are the queries.
        position: Which argument.
        axes: Its axes in the order batch, heads, seq, feature.
    """

    called: str
    position: int
    axes: Axes = AS_IT_IS

    def location(self, host: Envoy) -> str:
        return f"{last_call(host.source, self.called).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        tensor = _ordered(raw[0][self.position], self.axes)
        earlier = self._earlier(raw)
        return Reading(tensor[:, :, earlier:] if earlier else tensor)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        earlier = self._earlier(raw)
        if earlier:
            held = _ordered(args[self.position], self.axes)
            tensor = torch.cat([held[:, :, :earlier], tensor], dim=2)
        passed = _restored(tensor, self.axes)
        return ((*args[: self.position], passed, *args[self.position + 1 :]), kwargs)

    def _earlier(self, raw: Any) -> int:
        """The keys of earlier steps, which come out of a cache."""
        held = raw[0][self.position].shape[self.axes[2]]
        return held - raw[0][0].shape[2]


@dataclass(frozen=True)
class Operand:
    """What an operation of the forward is called with first.

    Attributes:
        called: What is called, dots as underscores.
        inside: The function of the forward that it is in, if not in the forward itself.
        which: Which one of that name, the last by default.
    """

    called: str
    inside: str | None = None
    which: int = -1

    def location(self, host: Envoy) -> str:
        return f"{_operation(host, self.called, self.inside, self.which).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw[0][0])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        return ((tensor, *args[1:]), kwargs)


def scores(called: str, inside: str | None = None, which: int = -1, below: float = -9e3) -> Masked:
    """The scores that the softmax ``called`` is handed; see `Operand` and `Masked`."""
    return Masked(Operand(called, inside, which), below)


@dataclass(frozen=True)
class Relative(Joined):
    """Scores whose ALiBi bias counts positions from one key, made to count from the query.

    What is added to all scores of a query changes nothing but their size. The ``earlier``
    part is the bias, its last axis the keys.
    """

    def given(self, part: Tensor) -> Site:
        return _FromQuery(part, self.last)


@dataclass(frozen=True)
class _FromQuery(Mapped):
    bias: Tensor
    site: Site

    def _own(self, like: Tensor) -> Tensor:
        """The bias of each query's own position."""
        batch, heads, queries, keys = like.shape
        own = self.bias.reshape(-1, heads, keys)[:, :, keys - queries :, None]
        return own.expand(batch, -1, -1, keys).to(like)

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        return tensor - self._own(tensor)

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        return value + self._own(value)


@dataclass(frozen=True)
class IntoProjection:
    """Head outputs, side by side in what the output projection is called with."""

    of: str

    @property
    def _site(self) -> FirstArgument:
        return FirstArgument(self.of)

    def location(self, host: Envoy) -> str:
        return self._site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        tensor = self._site.read(host, raw).tensor
        return Reading(tensor.unflatten(-1, (-1, host.root.head_dim)))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self._site.write(host, raw, tensor.flatten(-2))


@dataclass(frozen=True)
class Kept(Joined):
    """Keys or values that the forward makes before the queries, and uses after them.

    They are the ``earlier`` part, kept until the forward is at ``last``, and written in place.

    Attributes:
        times: How often the forward holds each, once for every query head it serves.
    """

    times: Callable[[Envoy], int] = lambda host: 1

    def given(self, part: Tensor) -> Site:
        return _KeptHeads(part, self.last, self.times)


@dataclass(frozen=True)
class _KeptHeads:
    held: Tensor
    at: Site
    times: Callable[[Envoy], int]

    def location(self, host: Envoy) -> str:
        return self.at.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.held[:, :: self.times(host)], fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        times = self.times(host)
        for first in range(times):
            # One by one, for they may share memory.
            self.held[:, first::times].copy_(tensor)
        return raw


@dataclass(frozen=True)
class Repeated:
    """Keys, each of which the forward holds once for every query head it serves."""

    site: Site
    times: Callable[[Envoy], int]

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        times = self.times(host)
        reading = self.site.read(host, raw)
        return reading if times == 1 else Reading(reading.tensor[:, ::times].clone(), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self.site.write(host, raw, tensor.repeat_interleave(self.times(host), dim=1))


@dataclass(frozen=True)
class Tiled:
    """Keys or values whose heads the forward repeats all together, and not one by one.

    Attributes:
        site: Where they are.
        heads: The attribute of the attention that counts those that are no repetition.
    """

    site: Site
    heads: str

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        own = self.site.read(host, raw).tensor[:, : getattr(host._module, self.heads)]
        return Reading(own.clone(), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        held = self.site.read(host, raw).tensor.shape[1]
        return self.site.write(host, raw, tensor.repeat(1, held // tensor.shape[1], 1, 1))


@dataclass(frozen=True)
class ByConfig(Elsewhere):
    """A value that is elsewhere where the config sets ``field``."""

    field: str
    site: Site
    otherwise: Site

    def here(self, host: Envoy) -> Site:
        return self.site if getattr(host.root._module.config, self.field) else self.otherwise


class OwnAttention(Live):
    """An attention module that computes the pattern itself; its family places the values."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, Nowhere())
    attention_keys = StandardValue(values.ATTENTION_KEYS, Nowhere())
    attention_values = StandardValue(values.ATTENTION_VALUES, Nowhere())
    attention_scores = StandardValue(values.ATTENTION_SCORES, Nowhere())
    attention_probabilities = StandardValue(values.ATTENTION_PROBABILITIES, Nowhere())
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, Nowhere())
    attention_output = StandardValue(values.ATTENTION_OUTPUT, Output())

    def unavailable(self, name: str) -> str | None:
        used = self.root._module.config._attn_implementation
        outside = (values.ATTENTION_OUTPUT.name, values.ATTENTION_HEAD_OUTPUTS.name)
        if used == "eager" or name in outside:
            return super().unavailable(name)
        if name in _PATTERN:
            return (
                f"attn_implementation={used!r} never holds the pattern as a tensor; load with "
                "attn_implementation='eager'"
            )
        if used != "sdpa":
            return f"attn_implementation={used!r} has another forward; load with 'eager'"
        return super().unavailable(name)


def in_function(name: str) -> dict[str, Site]:
    """The sites of an attention that calls ``name`` with queries, keys and values.

    The scores and the pattern, ``attn_weights``, are in that function.
    """
    return {
        "attention_queries": Passed(name, 0),
        "attention_keys": Passed(name, 1),
        "attention_values": Passed(name, 2),
        "attention_scores": scores("nn_functional_softmax", inside=name),
        "attention_probabilities": Bound("attn_weights", inside=name),
        "attention_head_outputs": IntoProjection("out_proj"),
    }
