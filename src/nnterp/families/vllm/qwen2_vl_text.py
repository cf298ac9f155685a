"""Qwen2-VL, text, on vLLM: Qwen2."""

from .qwen2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
