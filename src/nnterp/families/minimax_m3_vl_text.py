"""MiniMax-M3, text: an indexer picks the keys some blocks see, by the block of keys."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME", "RIGHT_PADDED"]

RIGHT_PADDED = "MiniMax-M3 tells blocks of keys by their place in the row, padding among them"
