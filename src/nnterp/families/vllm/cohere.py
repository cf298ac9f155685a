"""Command R on vLLM: one tensor between blocks, norms that return a pair, no head of its own."""

from nnterp.families import llama
from nnterp.families.vllm.gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

#: There is no ``lm_head``: the logits come from the embedding.
RENAME = llama.RENAME | {"model.embed_tokens": ["embed_tokens", "lm_head"]}
