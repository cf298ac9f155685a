"""Falcon on vLLM: attention and MLP return their biases beside what they are added to."""

from ...composed import Biased
from ...sites import Output
from ...vllm.attention import Attention
from ...vllm.mlp import Mlp
from ..falcon import RENAME
from . import gpt2

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = gpt2.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=Biased(Output(), 1)),
    "layers.*.mlp": Mlp.placed(mlp_output=Biased(Output(), 1)),
}
