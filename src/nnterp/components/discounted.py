"""Sinks that transformers applies to each head's output in place of its pattern.

A sink is a key that gives nothing and takes its share of the softmax. Shrinking what the
softmax without it gives by the share it would have left comes to the same, and some
families do that; the pattern then has to be shrunk for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from .. import values
from ..composed import Joined, Mapped
from ..eproperty import StandardValue
from ..sites import Reading, Site
from .attention import Attention, EagerArgument, Masked


@dataclass(frozen=True)
class Discount:
    """What each row of a pattern keeps of its weight, told from its scores."""

    scores: Site

    def location(self, host: Envoy) -> str:
        return self.scores.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        scores = self.scores.read(host, raw).tensor.float()
        sinks = host._module.sinks.float()[:, None]
        return Reading((scores.logsumexp(-1) - sinks).sigmoid()[..., None], fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("sinks take their share of a pattern for themselves")


@dataclass(frozen=True)
class Discounted(Joined):
    """A pattern, ``last``, of which each row keeps the part that is told ``earlier``."""

    def given(self, part: Tensor) -> Site:
        return Kept(part, self.last)


@dataclass(frozen=True)
class Kept(Mapped):
    """A pattern, whole at ``site``, whose rows keep a known ``part`` of their weight."""

    part: Tensor
    site: Site

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        return tensor * self.part.to(tensor.dtype)

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        return value / self.part.to(value.dtype)


_SCORES = Masked(EagerArgument("F_softmax"))


class DiscountedAttention(Attention):
    """An attention module whose sinks shrink what each head gives."""

    attention_scores = StandardValue(values.ATTENTION_SCORES, _SCORES)
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES,
        Discounted(Discount(_SCORES), EagerArgument("torch_matmul")),
    )
