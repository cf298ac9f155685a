"""Gemma on vLLM: LLaMA with the embedding scaled outside its module."""

from .gemma2 import TOKEN_EMBEDDINGS
from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
