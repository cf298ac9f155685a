"""Falcon Mamba: Mamba with a norm on what its mixer derives from the tokens."""

from nnterp.families.mamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
