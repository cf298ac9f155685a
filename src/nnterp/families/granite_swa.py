"""Granite with windows and sinks: a head's output shrinks by what its sink draws.

transformers applies the sinks to what the pattern gives and not to the pattern; here they
are part of the pattern, as everywhere.
"""

from nnterp.engines.transformers.envoys.discounted import DiscountedAttention
from nnterp.families import granite
from nnterp.families.granite import ADDED, READOUT, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ATTENTION", "ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

ATTENTION = DiscountedAttention.placed(attention_output=ADDED)

ENVOYS = granite.ENVOYS | {"layers.*.self_attn": ATTENTION}
