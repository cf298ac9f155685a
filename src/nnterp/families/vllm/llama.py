"""LLaMA on vLLM: every residual add fused into the norm that follows it."""

from ...vllm.attention import Attention
from ...vllm.layer import FusedLayer
from ...vllm.mlp import Mlp
from ..llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": FusedLayer,
    "layers.*.self_attn": Attention,
    "layers.*.mlp": Mlp,
}
