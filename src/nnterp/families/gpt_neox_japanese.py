"""GPT-NeoX Japanese: one half after the other; the last block's attention has a bias.

The bias is returned beside the output, and is part of ``attention_output``.
"""

from nnterp.engines.transformers.envoys.own_attention import (
    OwnAttention,
    before_projection,
    in_function,
)
from nnterp.families import llama
from nnterp.families.gpt_neox import RENAME
from nnterp.sites.choice import Biased
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnAttention.placed(
        **in_function("self__attn") | {"attention_head_outputs": before_projection("dense")},
        attention_output=Biased(Output(), 2),
    ),
}
