"""MiniMax-M2: sigmoid routing in every block, a norm over all queries and all keys."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
