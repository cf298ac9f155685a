"""Laguna: heads counted block by block, a gate on their outputs, experts."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
