"""Llama 4, text: chunked attention with rope, full attention without, experts fed by weight."""

from typing import Any

from nnterp.engines.transformers.envoys import Mlp
from nnterp.engines.transformers.envoys.flattened import Unflattened
from nnterp.families import llama
from nnterp.sites.primitive import FirstArgument, Output
from nnterp.sites.routing import ScoredChoice, router_of
from nnterp.vocabulary import values

__all__ = ["ENVOYS", "RENAME", "RIGHT_PADDED"]

RENAME = llama.RENAME | {"feed_forward": "mlp"}


class WeightedInputs(Mlp):
    """A mixture that multiplies what enters the experts, and returns rows without a batch axis."""

    mlp_output = Mlp.mlp_output.at(Unflattened(FirstArgument(), Output()))
    expert_indices = Mlp.expert_indices.at(ScoredChoice(weights=False))

    def unavailable(self, name: str) -> str | None:
        if name == values.EXPERT_WEIGHTS.name and router_of(self._module) is not None:
            return (
                "the experts' outputs are summed as they are: what enters each is multiplied, by "
                "the sigmoid of its router logit"
            )
        return super().unavailable(name)


ENVOYS = llama.ENVOYS | {"layers.*.mlp": WeightedInputs}


def _right_padded(config: Any, tokens: int) -> str | None:
    if not config.attn_temperature_tuning or tokens < config.floor_scale:
        return None
    return f"Llama 4 scales queries by their place in the row from the {config.floor_scale}th on"


RIGHT_PADDED = _right_padded
