"""EXAONE 4: norms after attention and MLP and none before, positions on windowed blocks alone."""

from nnterp.families.gemma2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
