"""Qwen3 on vLLM: LLaMA with a norm on each head's queries and keys."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
