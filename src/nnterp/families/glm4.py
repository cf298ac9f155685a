"""GLM-4: a norm before and after each half of a block, half of each head rotated in pairs."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.primitive import Output

__all__ = ["AFTER_ATTENTION", "AFTER_MLP", "ENVOYS", "RENAME"]

AFTER_ATTENTION = Output(of="..post_self_attn_layernorm")
AFTER_MLP = Output(of="..post_mlp_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
