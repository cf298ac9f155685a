"""CWM: LLaMA with a window on most blocks."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
