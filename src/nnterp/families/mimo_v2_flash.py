"""MiMo-V2-Flash: blocks with a window have sinks and twice the key heads, values are scaled."""

from ..components import Attention
from ..components.sinks import scores_below
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_scores=scores_below("attn_weights_max")),
}
