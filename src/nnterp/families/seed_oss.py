"""Seed-OSS: LLaMA with biases on queries, keys and values."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
