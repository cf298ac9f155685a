"""GPT-2: learned positions, LayerNorm, fused projections, its own names.

A config can ask for eager attention in float32, which is then a method of the module.
"""

from dataclasses import dataclass

from nnsight.intervention.envoy import Envoy

from nnterp.engines.transformers.envoys import Attention
from nnterp.engines.transformers.envoys.own_attention import in_function
from nnterp.families import llama
from nnterp.sites.base import Site
from nnterp.sites.choice import ByHost
from nnterp.sites.source import OperationOutput

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "transformer.wte": "embed_tokens",
    "transformer.h": "layers",
    "transformer.ln_f": "norm",
    "attn": "self_attn",
}


@dataclass(frozen=True)
class Upcast(ByHost):
    """A value that is elsewhere where the attention is computed in float32."""

    site: Site
    otherwise: Site

    def here(self, host: Envoy) -> Site:
        module = host._module
        eager = module.config._attn_implementation == "eager"
        return self.site if eager and module.reorder_and_upcast_attn else self.otherwise


METHOD = "self__upcast_and_reordered_attn"

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        **{
            name: Upcast(site, getattr(Attention, name).site)
            for name, site in {
                **in_function(METHOD),
                "attention_head_outputs": OperationOutput(METHOD),
            }.items()
        }
    )
}
