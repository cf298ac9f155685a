"""Bamba: Jamba with Mamba 2 for its mixer, and dense throughout."""

from .jamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
