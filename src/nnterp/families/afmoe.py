"""AFMoE: a norm around each half of a block, gated heads, embeddings scaled by the config."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.primitive import Argument, Output
from nnterp.sites.routing import Choice

__all__ = ["AFTER_ATTENTION", "AFTER_MLP", "ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

AFTER_ATTENTION = Output(of="..post_attention_layernorm")
AFTER_MLP = Output(of="..post_mlp_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(
        mlp_output=AFTER_MLP,
        expert_indices=Choice(weights=False, flat=False),
        expert_weights=Choice(weights=True, flat=False),
    ),
}

#: The scaled embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")
