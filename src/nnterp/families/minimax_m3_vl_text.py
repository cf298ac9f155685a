"""MiniMax-M3, text: an indexer picks the keys some blocks see, by the block of keys."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
