"""Apertus: LLaMA with xIELU in place of a gate and a norm on each head's queries and keys."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
