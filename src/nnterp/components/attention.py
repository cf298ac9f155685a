"""The attention of a transformers block, opened up.

A transformers attention computes queries, keys and values and hands them to an
*attention interface*, a function chosen by ``attn_implementation``; what it returns is
each head's output. So those four values are that call's arguments and result, whichever
implementation runs. Scores and pattern exist as tensors only in the ``eager`` one, as
the arguments of its softmax and of its product with the values.

nnsight makes the calls of a forward addressable and numbers them, and both it and
transformers renumber them from release to release. Here a call is found by what it
calls: the last one of that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.source import Source, SourceEnvoy
from torch import Tensor

from .. import values
from ..composed import Mapped
from ..eproperty import StandardValue
from ..errors import Unavailable
from ..sites import Output, Reading, Site
from .layer import Live

INTERFACE = "attention_interface"

QUERY, KEY, VALUE = 1, 2, 3  # the interface is called as (module, query, key, value, ...)


def last_call(source: Source, called: str) -> SourceEnvoy:
    """The last operation of ``source`` that calls ``called``.

    Raises:
        Unavailable: Where there is none, with the forward as nnsight reads it.
    """
    names = [name for name in source.names if name.rpartition("_")[0] == called]
    if not names:
        raise Unavailable(f"the forward makes no call to {called}:\n{source!r}")
    return source.node(names[-1])


@dataclass(frozen=True)
class InterfaceArgument:
    """A tensor the attention interface is called with."""

    position: int

    def location(self, host: Envoy) -> str:
        return f"{last_call(host.source, INTERFACE).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        tensor = raw[0][self.position]
        earlier = tensor.shape[2] - raw[0][QUERY].shape[2]
        # With a cache, keys and values are the whole sequence's; the last are this step's.
        own = tensor[:, :, earlier:] if earlier else tensor
        if raw[0][KEY] is raw[0][VALUE] and self.position != QUERY:
            # An edit of the keys is none of the values.
            return Reading(own.clone(), fresh=True)
        return Reading(own)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        held = args[self.position]
        earlier = held.shape[2] - tensor.shape[2]
        if earlier:
            tensor = torch.cat([held[:, :, :earlier], tensor], dim=2)
        return ((*args[: self.position], tensor, *args[self.position + 1 :]), kwargs)


@dataclass(frozen=True)
class InterfaceOutput:
    """What the attention interface returns, ``[batch, seq, heads, head_dim]``."""

    def location(self, host: Envoy) -> str:
        return f"{last_call(host.source, INTERFACE).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw[0])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return (tensor, *raw[1:])


@dataclass(frozen=True)
class EagerArgument:
    """The first argument of a call the eager attention function makes.

    Attributes:
        called: The function, dots as underscores: nnsight's name without its number.
    """

    called: Literal["nn_functional_softmax", "F_softmax", "torch_matmul"]

    def location(self, host: Envoy) -> str:
        eager = last_call(host.source, INTERFACE).source
        return f"{last_call(eager, self.called).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw[0][0])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        return ((tensor, *args[1:]), kwargs)


@dataclass(frozen=True)
class Masked(Mapped):
    """Scores that a mask is in, as a very low number: -inf where a key is not seen.

    Attributes:
        site: Where they enter their softmax.
        below: What is no score but a key that is not seen; by default half the lowest number
            of the dtype.
    """

    site: Site
    below: float | None = None

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        below = torch.finfo(tensor.dtype).min / 2 if self.below is None else self.below
        return tensor.masked_fill(tensor < below, float("-inf"))

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        # A row without a key, as padding has, must stay finite through the softmax.
        return value.clamp(min=torch.finfo(value.dtype).min)


class Attention(Live):
    """An attention module that calls transformers' attention interface."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, InterfaceArgument(QUERY))
    attention_keys = StandardValue(values.ATTENTION_KEYS, InterfaceArgument(KEY))
    attention_values = StandardValue(values.ATTENTION_VALUES, InterfaceArgument(VALUE))
    attention_scores = StandardValue(
        values.ATTENTION_SCORES, Masked(EagerArgument("nn_functional_softmax"))
    )
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES, EagerArgument("torch_matmul")
    )
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, InterfaceOutput())
    attention_output = StandardValue(values.ATTENTION_OUTPUT, Output())

    def unavailable(self, name: str) -> str | None:
        if name == values.ATTENTION_OUTPUT.name:
            return super().unavailable(name)
        if f"{INTERFACE}(" not in inspect.getsource(type(self._module).forward):
            return f"{type(self._module).__name__} computes attention without an {INTERFACE} call"
        if name in (values.ATTENTION_SCORES.name, values.ATTENTION_PROBABILITIES.name):
            used = self._module.config._attn_implementation
            if used != "eager":
                return (
                    f"attn_implementation={used!r} never holds the pattern as a tensor; load with "
                    "attn_implementation='eager'"
                )
        return None


class SecondMixer(Attention):
    """An attention that runs after another mixer, what its block adds being the sum of both."""

    between: ClassVar[Mapping[str, str]] = {
        value.name: values.ATTENTION_OUTPUT.name
        for value in (
            values.ATTENTION_QUERIES,
            values.ATTENTION_KEYS,
            values.ATTENTION_VALUES,
            values.ATTENTION_SCORES,
            values.ATTENTION_PROBABILITIES,
            values.ATTENTION_HEAD_OUTPUTS,
        )
    }


class RecurrentMixer(Live):
    """A block's mixer that carries a state from token to token, and has no pattern."""

    attention_output = StandardValue(values.ATTENTION_OUTPUT, Output())
