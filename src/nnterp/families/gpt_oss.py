"""gpt-oss: sinks in every head, windows in every other block, experts throughout."""

from ..components import Attention
from ..components.sinks import scores_below
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_scores=scores_below("combined_logits_max")),
}
