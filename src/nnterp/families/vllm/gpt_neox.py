"""GPT-NeoX on vLLM, through its Transformers backend: transformers' blocks, vLLM's kernel."""

from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "model.embed_in": "embed_tokens",
    "model.layers": "layers",
    "model.final_layer_norm": "norm",
    "attention": "self_attn",
}
