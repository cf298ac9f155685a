"""Jamba: Mamba blocks with attention blocks among them, each followed by an MLP or a mixture."""

from . import llama
from .qwen3_next import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {
    "model.final_layernorm": "norm",
    "mamba": "linear_attn",
    "feed_forward": "mlp",
}
