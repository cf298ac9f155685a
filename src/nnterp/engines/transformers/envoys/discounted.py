"""Serves attention whose sinks transformers applies to each head's output, not to its pattern.

A sink is a key without a value that takes its share of the softmax. Computing the softmax without
it and multiplying the head's output by the share that the sink leaves gives the same result, and
some families do that; the pattern then has to be multiplied by that share separately.
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
    """Return the share of weight each pattern row keeps: ``[batch, heads, query, 1]``."""
    scores = _SCORES.read(host, raw).tensor.float()
    sinks = host._module.sinks.float()[:, None]
    return (scores.logsumexp(-1) - sinks).sigmoid()[..., None]


def _times(host: Any, pattern: Tensor, kept: Tensor) -> Tensor:
    """Return the ``pattern``, ``[batch, heads, query, key]``, with the sinks' share taken off."""
    return pattern * kept.to(pattern.dtype)


def _divided(host: Any, pattern: Tensor, kept: Tensor) -> Tensor:
    """Undo `_times`."""
    # A row that keeps nothing, as of padding, is zeros, whatever it is divided by.
    return pattern / kept.masked_fill(kept == 0, 1).to(pattern.dtype)


_REMAINING = Computed(
    _SCORES, _kept, read_only="sinks take their share of a pattern for themselves"
)


class DiscountedAttention(Attention):
    """`DiscountedAttention` is the envoy of attention whose sinks scale down each head's output."""

    attention_scores = StandardValue(values.ATTENTION_SCORES, _SCORES)
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES,
        Combined(_REMAINING, in_eager("torch_matmul"), _times, _divided),
    )
