"""Aria, text: LLaMA with mixtures of experts, some of which every token is sent through."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
