"""AFMoE on vLLM: fused blocks with a norm after each half, the embedding scaled outside."""

from ...vllm.attention import Attention
from ...vllm.mlp import Mlp
from ..afmoe import AFTER_ATTENTION, AFTER_MLP
from . import llama
from .gemma2 import TOKEN_EMBEDDINGS
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
