"""Command R7B: Command R with windows on most blocks, and rotary positions on those alone."""

from nnterp.families.cohere import ENVOYS, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
