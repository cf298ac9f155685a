"""CWM on vLLM: transformers' own blocks, through the Transformers backend."""

from ..cwm import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
