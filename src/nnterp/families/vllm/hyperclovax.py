"""HyperCLOVA X on vLLM: one tensor between blocks, norms, multipliers and adds written out."""

from ...vllm.attention import Attention
from ...vllm.mlp import Mlp
from ..hyperclovax import AFTER_ATTENTION, AFTER_MLP, RENAME
from . import granite
from .granite import TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = granite.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
