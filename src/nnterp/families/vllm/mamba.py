"""Mamba on vLLM: the mixer writes into a buffer, which the block returns beside the residual."""

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.families.vllm import mamba2
from nnterp.families.vllm.mamba2 import RENAME
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = mamba2.ENVOYS | {
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=Output(of="..")),
}
