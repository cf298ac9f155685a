"""Qwen3-MoE: Qwen3 with a mixture of experts in the blocks the config names."""

from nnterp.families.qwen3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
