"""Gemma 4 Unified, text: Gemma 4 with neither embeddings for each block nor experts."""

from nnterp.families.gemma4_text import ENVOYS, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
