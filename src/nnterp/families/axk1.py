"""A.X K1: DeepSeek-V3's blocks, a norm at the end of every mixture."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
