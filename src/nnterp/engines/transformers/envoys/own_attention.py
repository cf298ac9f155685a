"""Serves attention that a module computes in its own forward, without an attention interface.

Older families write out the products and the softmax, each with its own variable names, so each
family says under which names of its forward the values are.
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

#: Returns how often the host's forward holds each key and value: once per query head it serves.
Repeats = Callable[[Any], int]


def scores(called: str, inside: str | None = None, which: int = -1, below: float = -9e3) -> Mapped:
    """Return the site of the scores that the softmax ``called`` is given.

    Args:
        called: The call of the softmax, as in `OperationInput`.
        inside: The function that it is in, as in `OperationInput`.
        which: Which of the calls, as in `OperationInput`.
        below: The number below which a score means a key that is not seen, as in `masked`.
    """
    return masked(OperationInput(called, inside, which), below)


def from_own_position(bias: Site, last: Site) -> Combined:
    """Return the site of scores whose ALiBi bias is made to count positions from the query.

    In the forward, the bias counts them from one key. A number that is added to all scores of a
    query changes nothing but the size of the scores.

    Args:
        bias: The bias, which the forward reaches first; its last axis is that of the keys.
        last: The scores, ``[batch, heads, query, key]``.
    """
    return Combined(
        bias,
        last,
        to=lambda host, tensor, part: tensor - _at_query(part, tensor),
        back=lambda host, value, part: value + _at_query(part, value),
        earlier_of_batch=True,
    )


def _at_query(bias: Tensor, scores: Tensor) -> Tensor:
    """Return the bias at each query's own position, in the shape of ``scores``.

    Args:
        bias: For the whole batch, a tensor that reshapes to ``[batch, heads, key]``.
        scores: ``[batch, heads, query, key]``, of the running invoke.
    """
    batch, heads, queries, keys = scores.shape
    bias = bias.reshape(-1, heads, keys)
    group = Mediator.current("bias").batch_group
    if len(bias) > batch and group:
        bias = bias.narrow(0, *group)
    own = bias[:, :, keys - queries :, None]
    return own.expand(batch, -1, -1, keys).to(scores)


def before_projection(of: str) -> Mapped:
    """Return the site of the heads' outputs, which are side by side where the projection is called.

    It is read as ``[batch, seq, heads, head_dim]`` where ``[batch, seq, heads * head_dim]`` enters.

    Args:
        of: The output projection, by its path from the host.
    """
    return Mapped(
        FirstArgument(of),
        to=lambda host, tensor: tensor.unflatten(-1, (-1, host.root.head_dim)),
        back=lambda host, heads, held: heads.flatten(-2),
        exact=True,
    )


@dataclass(frozen=True)
class MadeBefore(TwoPart):
    """A `MadeBefore` is keys or values that the forward makes before the queries and uses after.

    They are the earlier part, kept until the forward is at ``last``, and written in place.

    Attributes:
        repeats: Takes the host, and returns how often its forward holds each.
    """

    repeats: Repeats = lambda host: 1

    def given(self, part: Tensor) -> Site:
        return _InPlace(part, self.last, self.repeats)


@dataclass(frozen=True)
class _InPlace(Site):
    """`_InPlace` is the site of keys or values that are ``held``, once the forward is at ``at``."""

    held: Tensor
    at: Site
    repeats: Repeats

    def location(self, host: Envoy) -> str:
        return self.at.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.held[:, :: self.repeats(host)])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        repeats = self.repeats(host)
        for first in range(repeats):
            # The repeats are written one by one, because they may share memory.
            self.held[:, first::repeats].copy_(tensor)
        return raw


def repeated(site: Site, repeats: Repeats) -> Mapped:
    """Return the site of keys, each of which the forward holds once per query head that it serves.

    They are read as ``[batch, kv_heads, seq, head_dim]``.

    Args:
        site: Where the repeated keys are, ``[batch, heads, seq, head_dim]``.
        repeats: Takes the host, and returns how often its forward holds each.
    """

    def to(host: Any, held: Tensor) -> Tensor:
        times = repeats(host)
        return held if times == 1 else copied(held[:, ::times])

    def back(host: Any, keys: Tensor, held: Tensor) -> Tensor:
        return keys.repeat_interleave(repeats(host), dim=1)

    return Mapped(site, to, back, exact=True)


def tiled(site: Site, heads: str) -> Mapped:
    """Return the site of keys or values whose heads the forward repeats as a whole, not one by one.

    Args:
        site: Where they are, ``[batch, heads, seq, head_dim]``.
        heads: The attribute of the attention that counts the heads before repetition.
    """
    return Mapped(
        site,
        to=lambda host, held: copied(held[:, : getattr(host._module, heads)]),
        back=lambda host, own, held: own.repeat(1, held.shape[1] // own.shape[1], 1, 1),
        exact=True,
    )


class OwnAttention(AttentionEnvoy):
    """`OwnAttention` is the envoy of an attention module that computes the pattern itself.

    Its family places the values.
    """

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
    """Return the sites of an attention that calls ``name`` with queries, keys and values.

    The scores and the pattern, ``attn_weights``, are in that function.

    Args:
        name: The function, with dots as underscores.
    """
    return {
        "attention_queries": AttentionArgument(name, 0),
        "attention_keys": AttentionArgument(name, 1),
        "attention_values": AttentionArgument(name, 2),
        "attention_scores": scores("nn_functional_softmax", inside=name),
        "attention_probabilities": OperationOutput("attn_weights", inside=name),
        "attention_head_outputs": before_projection("out_proj"),
    }
