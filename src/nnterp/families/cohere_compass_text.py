"""Cohere Compass, text: Command R7B."""

from .cohere2 import ENVOYS, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
