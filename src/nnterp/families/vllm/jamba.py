"""Jamba on vLLM: attention spelled out in its block, Mamba writing into a buffer."""

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.engines.vllm.envoys.reused_attention import OwnKernel
from nnterp.families import jamba
from nnterp.families.vllm import llama
from nnterp.sites.primitive import FirstArgument, Output

__all__ = ["ENVOYS", "RENAME"]

#: There is no attention module but the kernel.
RENAME = jamba.RENAME | {"attn": "self_attn"}

BEFORE_MLP = FirstArgument(of="..pre_ff_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnKernel.placed(attention_output=Output(of="..o_proj")),
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=BEFORE_MLP),
}
