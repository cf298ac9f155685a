"""Qwen2.5-VL, text, on vLLM: Qwen2."""

from nnterp.families.vllm.qwen2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
