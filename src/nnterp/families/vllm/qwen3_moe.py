"""Qwen3-MoE on vLLM: Qwen3, the router called inside the kernel of the experts."""

from nnterp.families.vllm.qwen3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
