"""LFM2 on vLLM: the convolution writes into a buffer, which enters the norm before the MLP."""

from ...sites import FirstArgument
from ...vllm.attention import RecurrentMixer
from .. import lfm2
from . import llama

__all__ = ["ENVOYS", "RENAME"]

RENAME = lfm2.RENAME | {"short_conv": "linear_attn"}

ENVOYS = llama.ENVOYS | {
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=FirstArgument(of="..ffn_norm")),
}
