"""GPT-NeoX: attention and MLP side by side on one stream, or in sequence by config."""

from nnterp.families.llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

#: The backbone is called differently on each engine and in some of their releases.
RENAME = {
    "*.embed_in": "embed_tokens",
    "*.layers": "layers",
    "*.final_layer_norm": "norm",
    "embed_out": "lm_head",
    "attention": "self_attn",
}
