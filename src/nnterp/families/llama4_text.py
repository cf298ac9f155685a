"""Llama 4, text: chunked attention with rope, full attention without, experts fed by weight."""

from .. import values
from ..components import Mlp
from ..composed import Shaped
from ..routing import ScoredChoice, router_of
from ..sites import FirstArgument, Output
from . import llama

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {"feed_forward": "mlp"}


class WeightedInputs(Mlp):
    """A mixture that multiplies what enters the experts, and returns rows without a batch axis."""

    mlp_output = Mlp.mlp_output.at(Shaped(FirstArgument(), Output()))
    expert_indices = Mlp.expert_indices.at(ScoredChoice(weights=False))

    def unavailable(self, name: str) -> str | None:
        if name == values.EXPERT_WEIGHTS.name and router_of(self._module) is not None:
            return (
                "the experts' outputs are summed as they are: what enters each is multiplied, by "
                "the sigmoid of its router logit"
            )
        return super().unavailable(name)


ENVOYS = llama.ENVOYS | {"layers.*.mlp": WeightedInputs}
