"""Serves the values inside the attention of a transformers block.

A transformers attention computes queries, keys and values and passes them to an *attention
interface*, a function chosen by ``attn_implementation``, which returns each head's output. So
these four values are that call's arguments and result, whichever implementation runs. Scores and
pattern exist as tensors only in the ``eager`` one, as the arguments of its softmax and of its
product with the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from nnterp.engines.transformers.envoys.envoy import TransformersEnvoy
from nnterp.sites.base import Site
from nnterp.sites.mapped import Mapped
from nnterp.sites.primitive import Output
from nnterp.sites.source import AttentionArgument, OperationInput, OperationOutput
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values

INTERFACE = "attention_interface"

# The interface is called as (module, query, key, value, ...).
QUERIES = AttentionArgument(INTERFACE, 1, queries=1)
KEYS = AttentionArgument(INTERFACE, 2, queries=1)
VALUES = AttentionArgument(INTERFACE, 3, queries=1)


def in_eager(called: str) -> OperationInput:
    """Return the site of the first argument of a call in the eager attention function.

    Args:
        called: What is called, with dots as underscores.
    """
    return OperationInput(called, inside=INTERFACE)


def masked(site: Site, below: float | None = None) -> Mapped:
    """Return the site of scores in which the mask is a very low number, served as ``-inf``.

    The scores are ``[batch, heads, query, key]``.

    Args:
        site: Where they enter their softmax.
        below: The number below which a score means a key that is not seen; by default half the
            lowest number of the dtype.
    """

    def to(host: Any, scores: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min / 2 if below is None else below
        return scores.masked_fill(scores < lowest, float("-inf"))

    def back(host: Any, scores: Tensor, held: Tensor) -> Tensor:
        # A row in which no key is seen, as of padding, must stay finite through the softmax.
        return scores.clamp(min=torch.finfo(scores.dtype).min)

    return Mapped(site, to, back)


class AttentionEnvoy(TransformersEnvoy):
    """`AttentionEnvoy` hosts a module that adds to the stream what it takes from other tokens."""

    attention_output = StandardValue(values.ATTENTION_OUTPUT, Output())


class Attention(AttentionEnvoy):
    """`Attention` is the envoy of attention that calls transformers' attention interface."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, QUERIES)
    attention_keys = StandardValue(values.ATTENTION_KEYS, KEYS)
    attention_values = StandardValue(values.ATTENTION_VALUES, VALUES)
    attention_scores = StandardValue(
        values.ATTENTION_SCORES, masked(in_eager("nn_functional_softmax"))
    )
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES, in_eager("torch_matmul")
    )
    attention_head_outputs = StandardValue(
        values.ATTENTION_HEAD_OUTPUTS, OperationOutput(INTERFACE)
    )

    def unavailable(self, name: str) -> str | None:
        if name not in values.INSIDE_ATTENTION:
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
        return super().unavailable(name)


class SecondMixer(Attention):
    """`SecondMixer` is the envoy of an attention that runs after another mixer of its block.

    What the block adds to the stream is the sum of both.
    """

    between: ClassVar[Mapping[str, str]] = dict.fromkeys(
        values.INSIDE_ATTENTION, values.ATTENTION_OUTPUT.name
    )


class RecurrentMixer(AttentionEnvoy):
    """`RecurrentMixer` is the envoy of a mixer that carries a state from token to token.

    It has no attention pattern.
    """
