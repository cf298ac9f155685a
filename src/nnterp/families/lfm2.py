"""LFM2: most blocks mix by a gated convolution over a few tokens, some by attention."""

from nnterp.families import llama
from nnterp.families.qwen3_next import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {
    "model.embedding_norm": "norm",
    "conv": "linear_attn",
    "feed_forward": "mlp",
}
