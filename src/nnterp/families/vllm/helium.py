"""Helium on vLLM: transformers' own blocks, through the Transformers backend."""

from ..helium import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
