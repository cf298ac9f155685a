"""Qwen3-VL, text, on vLLM: Qwen3."""

from .qwen3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
