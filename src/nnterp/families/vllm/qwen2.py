"""Qwen2 on vLLM: LLaMA with biases on queries, keys and values."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
