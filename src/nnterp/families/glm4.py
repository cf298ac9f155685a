"""GLM-4: a norm before and after each half of a block, half of each head rotated in pairs."""

from ..components import Attention, Mlp
from ..sites import Output
from . import llama
from .llama import RENAME

__all__ = ["AFTER_ATTENTION", "AFTER_MLP", "ENVOYS", "RENAME"]

AFTER_ATTENTION = Output(of="..post_self_attn_layernorm")
AFTER_MLP = Output(of="..post_mlp_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
