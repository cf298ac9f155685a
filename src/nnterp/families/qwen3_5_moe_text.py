"""Qwen3.5, text, with mixtures of experts: Qwen3-Next."""

from nnterp.families.qwen3_next import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
