"""Ministral 3: Mistral whose queries grow with the position."""

from nnterp.families.mistral import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
