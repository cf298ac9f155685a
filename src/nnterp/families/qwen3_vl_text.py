"""Qwen3-VL, text: Qwen3 with a rotary embedding of three position axes."""

from nnterp.families.qwen3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
