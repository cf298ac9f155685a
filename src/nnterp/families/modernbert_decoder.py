"""ModernBERT's decoder: a norm on the embeddings, windows, a dense head before the projection.

That head is its ``lm_head``, and the projection is called ``decoder``.
"""

from nnterp.families import llama
from nnterp.families.llama import ENVOYS

__all__ = ["BEFORE_HEAD", "ENVOYS", "HEAD", "RENAME"]

RENAME = llama.RENAME | {
    "model.embeddings.tok_embeddings": "embed_tokens",
    "model.final_norm": "norm",
    "attn": "self_attn",
}

BEFORE_HEAD = ("norm", "lm_head")

HEAD = "decoder"
