"""LLaMA on vLLM: every residual add fused into the norm that follows it."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.layer import FusedLayer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": FusedLayer,
    "layers.*.self_attn": Attention,
    "layers.*.mlp": Mlp,
}
