"""ZAYA: every feature shifted and weighed at each add, of the stream and of what is added.

A block's output is no sum, then. Queries and keys are mixed over tokens, half of each value is
the token before's, and an expert that does nothing is ``expert_indices`` 0 with no weight.
"""

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from ..components import Attention, Mlp
from ..components.flat import Unflattened
from ..composed import Mapped
from ..sites import Argument, Output, Reading, Site, relative
from . import llama
from .doge import WeighingLayer
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]


@dataclass(frozen=True)
class Weighed(Mapped):
    """A value whose features ``by`` shifts and weighs before it adds them."""

    site: Site
    by: str

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        adding: Any = relative(host, self.by)._module
        return (tensor + adding.hidden_states_bias) * adding.hidden_states_scale

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        adding: Any = relative(host, self.by)._module
        return value / adding.hidden_states_scale - adding.hidden_states_bias


@dataclass(frozen=True)
class FromRouter:
    """What the router returns in rows; last, it returns what has the axes of batch and tokens."""

    rows: Output

    def location(self, host: Envoy) -> str:
        return self.rows.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Unflattened(self.rows, self.rows).given(raw[-1]).read(host, raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("the router chooses the experts for itself")


class RoutedMlp(Mlp):
    """A mixture of experts whose router is a network of its own."""

    def unavailable(self, name: str) -> str | None:
        return None


ENVOYS = llama.ENVOYS | {
    "layers.*": WeighingLayer,
    "layers.*.self_attn": Attention.placed(
        attention_output=Weighed(Output(), "..post_attention_residual_scale")
    ),
    "layers.*.mlp": RoutedMlp.placed(
        mlp_output=Weighed(Output(), "..post_mlp_residual_scale"),
        router_logits=Output(of="gate.router_mlp.out_proj"),
        expert_weights=FromRouter(Output(of="gate", index=1)),
        expert_indices=FromRouter(Output(of="gate", index=2)),
    ),
}

#: The weighed embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")
