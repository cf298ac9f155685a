"""Laguna on vLLM: LLaMA's blocks, each with its own number of heads, gated after the kernel."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
