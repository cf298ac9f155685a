"""Command with experts: Command R7B with mixtures, their shared expert inside the module."""

from nnterp.families.cohere2 import ENVOYS, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
