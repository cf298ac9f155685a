"""Jamba on vLLM: attention spelled out in its block, Mamba writing into a buffer."""

from ...sites import FirstArgument, Output
from ...vllm.attention import RecurrentMixer
from ...vllm.shared_attention import OwnKernel
from .. import jamba
from . import llama

__all__ = ["ENVOYS", "RENAME"]

#: There is no attention module but the kernel.
RENAME = jamba.RENAME | {"attn": "self_attn"}

BEFORE_MLP = FirstArgument(of="..pre_ff_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnKernel.placed(attention_output=Output(of="..o_proj")),
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=BEFORE_MLP),
}
