"""Zamba: Mamba blocks, in some of which a shared transformer adds to what the mixer sees.

Such a block adds only what its mixer makes of both to the stream: that is the
``attention_output`` of its ``self_attn``, whose other values are the shared attention's,
and it has no ``mlp`` of its own.
"""

from nnterp.engines.transformers.envoys import Attention
from nnterp.families import jamba
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "FROM_MIXER", "RENAME"]

FROM_MIXER = Output(of="...mamba_decoder.mamba")

RENAME = {key: alias for key, alias in jamba.RENAME.items() if key != "feed_forward"} | {
    "shared_transf.self_attn": "self_attn",
}

ENVOYS = jamba.ENVOYS | {"layers.*.self_attn": Attention.placed(attention_output=FROM_MIXER)}
