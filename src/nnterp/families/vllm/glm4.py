"""GLM-4 on vLLM: fused blocks with a norm after each half, before the next add."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.glm4 import AFTER_ATTENTION, AFTER_MLP
from nnterp.families.vllm import llama
from nnterp.families.vllm.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
