"""Gemma on vLLM: LLaMA with the embedding scaled outside its module."""

from nnterp.families.vllm.gemma2 import TOKEN_EMBEDDINGS
from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
