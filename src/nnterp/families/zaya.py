"""ZAYA: every feature shifted and weighed at each add, of the stream and of what is added.

A block's output is no sum, then. Queries and keys are mixed over tokens, half of each value is
the token before's, and an expert that does nothing is ``expert_indices`` 0 with no weight.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.flattened import Unflattened
from nnterp.families import llama
from nnterp.families.doge import WeighingLayer
from nnterp.families.llama import RENAME
from nnterp.sites.base import Site, module_at
from nnterp.sites.choice import ByHost
from nnterp.sites.mapped import Mapped
from nnterp.sites.primitive import Argument, Output

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]


def weighed(site: Site, by: str) -> Mapped:
    """A value whose features the module at ``by`` shifts and weighs before it adds them."""

    def to(host: Any, tensor: Tensor) -> Tensor:
        adding: Any = module_at(host, by)._module
        return (tensor + adding.hidden_states_bias) * adding.hidden_states_scale

    def back(host: Any, value: Tensor, held: Tensor) -> Tensor:
        adding: Any = module_at(host, by)._module
        return value / adding.hidden_states_scale - adding.hidden_states_bias

    return Mapped(site, to, back)


@dataclass(frozen=True)
class FromRouter(ByHost):
    """What the router returns in rows; last, it returns what has the axes of batch and tokens."""

    rows: Output

    def here(self, host: Any) -> Site:
        return self.rows

    def given(self, host: Any, raw: Any) -> Site:
        return Unflattened(self.rows, self.rows).given(raw[-1])


class RoutedMlp(Mlp):
    """A mixture of experts whose router is a network of its own."""

    def unavailable(self, name: str) -> str | None:
        return None


ENVOYS = llama.ENVOYS | {
    "layers.*": WeighingLayer,
    "layers.*.self_attn": Attention.placed(
        attention_output=weighed(Output(), "..post_attention_residual_scale")
    ),
    "layers.*.mlp": RoutedMlp.placed(
        mlp_output=weighed(Output(), "..post_mlp_residual_scale"),
        router_logits=Output(of="gate.router_mlp.out_proj"),
        expert_weights=FromRouter(Output(of="gate", index=1)),
        expert_indices=FromRouter(Output(of="gate", index=2)),
    ),
}

#: The weighed embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")
