"""Ministral: Mistral with a window on some blocks and none on others."""

from nnterp.families.mistral import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
