"""GPT-2: learned positions, LayerNorm, fused projections, its own names."""

from .llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "transformer.wte": "embed_tokens",
    "transformer.h": "layers",
    "transformer.ln_f": "norm",
    "attn": "self_attn",
}
