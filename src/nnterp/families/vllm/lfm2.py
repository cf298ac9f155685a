"""LFM2 on vLLM: the convolution writes into a buffer, which enters the norm before the MLP."""

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.families import lfm2
from nnterp.families.vllm import llama
from nnterp.sites.primitive import FirstArgument

__all__ = ["ENVOYS", "RENAME"]

RENAME = lfm2.RENAME | {"short_conv": "linear_attn"}

ENVOYS = llama.ENVOYS | {
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=FirstArgument(of="..ffn_norm")),
}
