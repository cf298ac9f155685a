"""Qwen2-MoE: Qwen2 with a mixture of experts and one more, gated, that sees every token."""

from nnterp.families.qwen2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
