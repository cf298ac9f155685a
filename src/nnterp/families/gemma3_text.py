"""Gemma 3, text: Gemma 2 with a norm on each head's queries and keys in place of the caps."""

from nnterp.families.gemma2 import ENVOYS, READOUT, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
