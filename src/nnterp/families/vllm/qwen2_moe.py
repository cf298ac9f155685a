"""Qwen2-MoE on vLLM: Qwen2, the router called inside the kernel of the experts."""

from nnterp.families.vllm.qwen2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
