"""Qwen3.5, text: Qwen3-Next with dense MLPs."""

from nnterp.families.qwen3_next import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
