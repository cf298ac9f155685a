"""Jamba: Mamba blocks with attention blocks among them, each followed by an MLP or a mixture."""

from nnterp.families import llama
from nnterp.families.qwen3_next import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {
    "model.final_layernorm": "norm",
    "mamba": "linear_attn",
    "feed_forward": "mlp",
}
