"""Doge: the stream weighed by feature before each add, keys hidden by what their values say.

A block's output is no sum where a weight is not 1. In ``attention_scores`` a key that is seen
has what its value adds.
"""

from typing import Any

from nnsight.intervention.envoy import Envoy

from nnterp.engines.transformers.envoys import Layer, Mlp
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.vocabulary.values import ROUTING

__all__ = ["ALONE", "ENVOYS", "RENAME"]


class WeighingLayer(Layer):
    """A block that weighs the features of the stream it adds to."""

    @property
    def is_residual_sum(self) -> bool:
        return False


def _has_experts(mlp: Envoy) -> bool:
    return hasattr(mlp._module, "router_gate")


class EmbeddedExpertsMlp(Mlp):
    """An MLP, or one beside experts that are rows of an embedding."""

    def unavailable(self, name: str) -> str | None:
        if name in ROUTING and _has_experts(self):
            return (
                "its router scores the two halves of an expert's number apart, and lays the "
                "scores out so that a token is given those of two others"
            )
        return super().unavailable(name)


ENVOYS = llama.ENVOYS | {
    "layers.*": WeighingLayer,
    "layers.*.mlp": EmbeddedExpertsMlp,
}


def _alone(config: Any, tokens: int) -> str | None:
    return (
        "Doge's experts give a token the scores of others in the batch" if config.is_moe else None
    )


ALONE = _alone
