"""LFM2 with mixtures of experts."""

from nnterp.families.lfm2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
