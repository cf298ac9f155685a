"""Gemma 3n, text: four streams, which a block predicts anew, runs one of, and corrects.

What a block runs is its prediction of one stream, to which it adds ``attention_output``, then
what a low-rank side branch (LAuReL) makes of the block's input, and ``mlp_output`` after a
division by the root of 2. The logits are read off the mean of all four.
"""

from nnterp.engines.transformers.envoys import Mlp
from nnterp.engines.transformers.envoys.kv_sharing import KVSharingAttention
from nnterp.engines.transformers.envoys.multi_stream import MultiStreamLayer
from nnterp.families.gemma2 import AFTER_ATTENTION, AFTER_MLP, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]

ENVOYS = {
    "layers.*": MultiStreamLayer,
    "layers.*.self_attn": KVSharingAttention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
