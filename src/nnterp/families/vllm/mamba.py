"""Mamba on vLLM: the mixer writes into a buffer, which the block returns beside the residual."""

from ...sites import Output
from ...vllm.attention import RecurrentMixer
from . import mamba2
from .mamba2 import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = mamba2.ENVOYS | {
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=Output(of="..")),
}
