"""Hunyuan 4: latents and sinks, and several streams that each half adds to in shares.

``attention_output`` and ``mlp_output`` are what is shared out.
"""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.multi_stream import MultiStreamLayer
from nnterp.engines.transformers.envoys.sinks import scores_below
from nnterp.families.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": MultiStreamLayer,
    "layers.*.self_attn": Attention.placed(attention_scores=scores_below("combined_logits_max")),
    "layers.*.mlp": Mlp,
}
