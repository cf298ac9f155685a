"""AFMoE on vLLM: fused blocks with a norm after each half, the embedding scaled outside."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.afmoe import AFTER_ATTENTION, AFTER_MLP
from nnterp.families.vllm import llama
from nnterp.families.vllm.gemma2 import TOKEN_EMBEDDINGS
from nnterp.families.vllm.llama import RENAME

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
