"""Gemma 2: a norm before and after each half of a block, soft caps, alternating windows."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.readout import capped
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.primitive import Output

__all__ = ["AFTER_ATTENTION", "AFTER_MLP", "ENVOYS", "READOUT", "RENAME"]

#: What each half adds to the stream is what leaves the norm after it.
AFTER_ATTENTION = Output(of="..post_attention_layernorm")
AFTER_MLP = Output(of="..post_feedforward_layernorm")

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}

READOUT = capped("final_logit_softcapping")
