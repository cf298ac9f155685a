"""GPT-2: learned positions, LayerNorm, fused projections, its own names.

A config can ask for eager attention in float32, which is then a method of the module.
"""

from typing import Any

from nnterp.engines.transformers.envoys import Attention
from nnterp.engines.transformers.envoys.own_attention import in_function
from nnterp.families import llama
from nnterp.sites.choice import Either
from nnterp.sites.source import OperationOutput

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "transformer.wte": "embed_tokens",
    "transformer.h": "layers",
    "transformer.ln_f": "norm",
    "attn": "self_attn",
}


def upcasts(attention: Any) -> bool:
    """Whether the attention is computed in float32, by a method of its own."""
    module = attention._module
    return module.config._attn_implementation == "eager" and module.reorder_and_upcast_attn


METHOD = "self__upcast_and_reordered_attn"

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        **{
            name: Either(upcasts, site, getattr(Attention, name).site)
            for name, site in {
                **in_function(METHOD),
                "attention_head_outputs": OperationOutput(METHOD),
            }.items()
        }
    )
}
