"""MiMo-V2-Flash: blocks with a window have sinks and twice the key heads, values are scaled."""

from nnterp.engines.transformers.envoys import Attention
from nnterp.engines.transformers.envoys.sinks import scores_below
from nnterp.families import llama
from nnterp.families.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_scores=scores_below("attn_weights_max")),
}
