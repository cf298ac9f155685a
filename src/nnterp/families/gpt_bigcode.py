"""GPT-BigCode: GPT-2 with one head of keys and values for all queries."""

from nnterp.families.llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

#: The backbone is called differently on each engine.
RENAME = {
    "*.wte": "embed_tokens",
    "*.h": "layers",
    "*.ln_f": "norm",
    "attn": "self_attn",
}
