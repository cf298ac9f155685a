"""GPT-NeoX: attention and MLP side by side on one stream, or in sequence by config."""

from .llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "gpt_neox.embed_in": "embed_tokens",
    "gpt_neox.layers": "layers",
    "gpt_neox.final_layer_norm": "norm",
    "attention": "self_attn",
}
