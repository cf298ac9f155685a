"""BLOOM on vLLM: attention and MLP return what they add, and the block adds it."""

from ..bloom import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
