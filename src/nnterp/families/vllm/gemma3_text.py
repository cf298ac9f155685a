"""Gemma 3, text, on vLLM: Gemma 2 with a head of its own, tied or not."""

from nnterp.families.vllm import llama
from nnterp.families.vllm.gemma2 import ENVOYS, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

RENAME = llama.RENAME
