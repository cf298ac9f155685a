"""Qwen3-VL, text, on vLLM: Qwen3."""

from nnterp.families.vllm.qwen3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
