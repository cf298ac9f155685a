"""Bamba: Jamba with Mamba 2 for its mixer, and dense throughout."""

from nnterp.families.jamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
