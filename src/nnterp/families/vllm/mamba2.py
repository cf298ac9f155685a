"""Mamba 2 on vLLM: the residual add fused into the norm of the next block."""

from ...vllm.attention import RecurrentMixer
from ...vllm.layer import FusedLayer
from ..mamba2 import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": FusedLayer,
    "layers.*.linear_attn": RecurrentMixer,
}
