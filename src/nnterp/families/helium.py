"""Helium: LLaMA with neighbouring features rotated in pairs."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
