"""Gemma 3, text, on vLLM: Gemma 2 with a head of its own, tied or not."""

from . import llama
from .gemma2 import ENVOYS, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

RENAME = llama.RENAME
