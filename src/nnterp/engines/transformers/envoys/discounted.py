"""Sinks that transformers applies to each head's output in place of its pattern.

A sink is a key that gives nothing and takes its share of the softmax. Shrinking what the
softmax without it gives by the share it would have left comes to the same, and some
families do that; the pattern then has to be shrunk for itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nnterp.engines.transformers.envoys.attention import Attention, in_eager, masked
from nnterp.sites.mapped import Computed
from nnterp.sites.two_part import Combined
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values

_SCORES = masked(in_eager("F_softmax"))


def _kept(host: Any, raw: Any) -> Tensor:
    """``[batch, heads, query, 1]``: what each row of the pattern keeps of its weight."""
    scores = _SCORES.read(host, raw).tensor.float()
    sinks = host._module.sinks.float()[:, None]
    return (scores.logsumexp(-1) - sinks).sigmoid()[..., None]


def _times(host: Any, pattern: Tensor, kept: Tensor) -> Tensor:
    return pattern * kept.to(pattern.dtype)


def _divided(host: Any, pattern: Tensor, kept: Tensor) -> Tensor:
    # A row that keeps nothing, as padding has, is zeros whatever they are divided by.
    return pattern / kept.masked_fill(kept == 0, 1).to(pattern.dtype)


_REMAINING = Computed(
    _SCORES, _kept, read_only="sinks take their share of a pattern for themselves"
)


class DiscountedAttention(Attention):
    """An attention module whose sinks shrink what each head gives."""

    attention_scores = StandardValue(values.ATTENTION_SCORES, _SCORES)
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES,
        Combined(_REMAINING, in_eager("torch_matmul"), _times, _divided),
    )
