"""Gemma 2: a norm before and after each half of a block, soft caps, alternating windows."""

from ..components import Attention, Mlp
from ..readout import capped
from ..sites import Output
from . import llama
from .llama import RENAME

__all__ = ["AFTER_ATTENTION", "AFTER_MLP", "ENVOYS", "READOUT", "RENAME"]

#: What each half adds to the stream is what leaves the norm after it.
AFTER_ATTENTION = Output(of="..post_attention_layernorm")
AFTER_MLP = Output(of="..post_feedforward_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}

READOUT = capped("final_logit_softcapping")
