"""Mamba 2 on vLLM: the residual add fused into the norm of the next block."""

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.engines.vllm.envoys.layer import FusedLayer
from nnterp.families.mamba2 import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": FusedLayer,
    "layers.*.linear_attn": RecurrentMixer,
}
