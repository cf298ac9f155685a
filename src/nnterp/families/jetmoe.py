"""JetMoE: mixtures of experts for attention too, each with queries and an output of its own.

A token has ``num_experts_per_tok`` sets of queries and head outputs, one for each expert that
was chosen for it, and one set of keys and values, which the forward repeats.
"""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.attention import KEYS, VALUES
from nnterp.engines.transformers.envoys.own_attention import tiled
from nnterp.families import llama

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {"self_attention": "self_attn"}


class SortingMlp(Mlp):
    """A mixture whose router sorts the tokens by the experts they are sent to."""

    def unavailable(self, name: str) -> str | None:
        if name in ("expert_indices", "expert_weights"):
            return "its router returns the tokens of each expert, and not the experts of each token"
        return super().unavailable(name)


ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        attention_keys=tiled(KEYS, "num_key_value_heads"),
        attention_values=tiled(VALUES, "num_key_value_heads"),
    ),
    "layers.*.mlp": SortingMlp,
}
