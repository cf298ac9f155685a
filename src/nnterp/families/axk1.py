"""A.X K1: DeepSeek-V3's blocks, a norm at the end of every mixture."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
