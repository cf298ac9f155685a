"""GLM-4 on vLLM: fused blocks with a norm after each half, before the next add."""

from ...vllm.attention import Attention
from ...vllm.mlp import Mlp
from ..glm4 import AFTER_ATTENTION, AFTER_MLP
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
