"""Qwen3: LLaMA with a norm on each head's queries and keys."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
