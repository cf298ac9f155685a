"""Mistral on vLLM: LLaMA with a sliding window."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
