"""Attention that transformers computes in a module's own forward, without an interface.

Older families write the products and the softmax out, each in its own words, so each says
under which names of its forward the values are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from nnterp.engines.transformers.envoys.attention import AttentionEnvoy, masked
from nnterp.lifetime import Reading, copied
from nnterp.sites.base import Site
from nnterp.sites.mapped import Mapped
from nnterp.sites.primitive import FirstArgument, Nowhere
from nnterp.sites.source import AttentionArgument, OperationInput, OperationOutput
from nnterp.sites.two_part import Combined, TwoPart
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values

#: How often a forward holds each key and value: once for every query head that it serves.
Repeats = Callable[[Any], int]


def scores(called: str, inside: str | None = None, which: int = -1, below: float = -9e3) -> Mapped:
    """The scores that the softmax ``called`` is given; see `OperationInput` and `masked`."""
    return masked(OperationInput(called, inside, which), below)


def from_own_position(bias: Site, last: Site) -> Combined:
    """Scores whose ALiBi bias counts positions from one key, made to count from the query.

    What is added to all scores of a query changes nothing but their size.

    Args:
        bias: The bias, which the forward reaches first; its last axis is that of the keys.
        last: The scores.
    """
    return Combined(
        bias,
        last,
        to=lambda host, tensor, part: tensor - _at_query(part, tensor),
        back=lambda host, value, part: value + _at_query(part, value),
        earlier_of_batch=True,
    )


def _at_query(bias: Tensor, scores: Tensor) -> Tensor:
    """The bias of each query's own position, in the shape of ``scores``."""
    batch, heads, queries, keys = scores.shape
    bias = bias.reshape(-1, heads, keys)
    group = Mediator.current("bias").batch_group
    if len(bias) > batch and group:
        bias = bias.narrow(0, *group)
    own = bias[:, :, keys - queries :, None]
    return own.expand(batch, -1, -1, keys).to(scores)


def before_projection(of: str) -> Mapped:
    """Head outputs, side by side in what the output projection is called with.

    Args:
        of: The projection, by its path from the host.
    """
    return Mapped(
        FirstArgument(of),
        to=lambda host, tensor: tensor.unflatten(-1, (-1, host.root.head_dim)),
        back=lambda host, heads, held: heads.flatten(-2),
        exact=True,
    )


@dataclass(frozen=True)
class MadeBefore(TwoPart):
    """Keys or values that the forward makes before the queries, and uses after them.

    They are the earlier part, kept until the forward is at ``last``, and written in place.

    Attributes:
        repeats: How often the forward holds each.
    """

    repeats: Repeats = lambda host: 1

    def given(self, part: Tensor) -> Site:
        return _InPlace(part, self.last, self.repeats)


@dataclass(frozen=True)
class _InPlace(Site):
    held: Tensor
    at: Site
    repeats: Repeats

    def location(self, host: Envoy) -> str:
        return self.at.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.held[:, :: self.repeats(host)], is_new_tensor=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        repeats = self.repeats(host)
        for first in range(repeats):
            # One by one, for they may share memory.
            self.held[:, first::repeats].copy_(tensor)
        return raw


def repeated(site: Site, repeats: Repeats) -> Mapped:
    """Keys, each of which the forward holds once for every query head that it serves."""

    def to(host: Any, held: Tensor) -> Tensor:
        times = repeats(host)
        return held if times == 1 else copied(held[:, ::times])

    def back(host: Any, keys: Tensor, held: Tensor) -> Tensor:
        return keys.repeat_interleave(repeats(host), dim=1)

    return Mapped(site, to, back, exact=True)


def tiled(site: Site, heads: str) -> Mapped:
    """Keys or values whose heads the forward repeats all together, and not one by one.

    Args:
        site: Where they are.
        heads: The attribute of the attention that counts those that are no repetition.
    """
    return Mapped(
        site,
        to=lambda host, held: copied(held[:, : getattr(host._module, heads)]),
        back=lambda host, own, held: own.repeat(1, held.shape[1] // own.shape[1], 1, 1),
        exact=True,
    )


class OwnAttention(AttentionEnvoy):
    """An attention module that computes the pattern itself; its family places the values."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, Nowhere())
    attention_keys = StandardValue(values.ATTENTION_KEYS, Nowhere())
    attention_values = StandardValue(values.ATTENTION_VALUES, Nowhere())
    attention_scores = StandardValue(values.ATTENTION_SCORES, Nowhere())
    attention_probabilities = StandardValue(values.ATTENTION_PROBABILITIES, Nowhere())
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, Nowhere())

    def unavailable(self, name: str) -> str | None:
        used = self.root._module.config._attn_implementation
        if used == "eager" or name not in _INSIDE:
            return super().unavailable(name)
        if name in _PATTERN:
            return (
                f"attn_implementation={used!r} never holds the pattern as a tensor; load with "
                "attn_implementation='eager'"
            )
        if used != "sdpa":
            return f"attn_implementation={used!r} has another forward; load with 'eager'"
        return super().unavailable(name)


_PATTERN = (values.ATTENTION_SCORES.name, values.ATTENTION_PROBABILITIES.name)

#: The names of what another implementation may compute elsewhere, or not at all.
_INSIDE = values.INSIDE_ATTENTION - {values.ATTENTION_HEAD_OUTPUTS.name}


def in_function(name: str) -> dict[str, Site]:
    """The sites of an attention that calls ``name`` with queries, keys and values.

    The scores and the pattern, ``attn_weights``, are in that function.
    """
    return {
        "attention_queries": AttentionArgument(name, 0),
        "attention_keys": AttentionArgument(name, 1),
        "attention_values": AttentionArgument(name, 2),
        "attention_scores": scores("nn_functional_softmax", inside=name),
        "attention_probabilities": OperationOutput("attn_weights", inside=name),
        "attention_head_outputs": before_projection("out_proj"),
    }
