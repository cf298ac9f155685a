"""Hunyuan 3: a norm on each head's queries and keys, experts after the first blocks."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
