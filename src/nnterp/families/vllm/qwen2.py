"""Qwen2 on vLLM: LLaMA with biases on queries, keys and values."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
