"""Qwen2.5-VL, text: that of Qwen2-VL."""

from nnterp.families.qwen2_vl_text import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
