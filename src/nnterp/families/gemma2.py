"""Gemma 2: a norm before and after each half of a block, soft caps, alternating windows."""

from ..components import Attention, Mlp
from ..sites import Output
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "FINAL_SOFT_CAP", "RENAME"]


class SandwichedAttention(Attention):
    """What it adds to the stream is its output after the block's post-norm."""

    attention_output = Attention.attention_output.at(Output(of="..post_attention_layernorm"))


class SandwichedMlp(Mlp):
    """What it adds to the stream is its output after the block's post-norm."""

    mlp_output = Mlp.mlp_output.at(Output(of="..post_feedforward_layernorm"))


ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": SandwichedAttention,
    "layers.*.mlp": SandwichedMlp,
}

FINAL_SOFT_CAP = "final_logit_softcapping"
