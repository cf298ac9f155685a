"""Qwen3-VL-MoE, text: Qwen3-MoE with a rotary embedding of three position axes."""

from nnterp.families.qwen3_moe import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
