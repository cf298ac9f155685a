"""Hunyuan 4: latents and sinks, and several streams that each half adds to in shares.

``attention_output`` and ``mlp_output`` are what is shared out.
"""

from ..components import Attention, Mlp
from ..components.sinks import scores_below
from ..components.streams import MultiStreamLayer
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": MultiStreamLayer,
    "layers.*.self_attn": Attention.placed(attention_scores=scores_below("combined_logits_max")),
    "layers.*.mlp": Mlp,
}
