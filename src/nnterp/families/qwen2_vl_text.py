"""Qwen2-VL, text: Qwen2 with a rotary embedding of three position axes."""

from nnterp.families.qwen2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
