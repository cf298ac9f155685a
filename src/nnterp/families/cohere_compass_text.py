"""Cohere Compass, text: Command R7B."""

from nnterp.families.cohere2 import ENVOYS, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
