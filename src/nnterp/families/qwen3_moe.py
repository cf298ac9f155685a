"""Qwen3-MoE: Qwen3 with a mixture of experts in the blocks the config names."""

from .qwen3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
