"""GPT-NeoX Japanese: one half after the other; the last block's attention has a bias.

The bias is returned beside the output, and is part of ``attention_output``.
"""

from ..components.own import IntoProjection, OwnAttention, in_function
from ..composed import Biased
from ..sites import Output
from . import llama
from .gpt_neox import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnAttention.placed(
        **in_function("self__attn") | {"attention_head_outputs": IntoProjection("dense")},
        attention_output=Biased(Output(), 2),
    ),
}
