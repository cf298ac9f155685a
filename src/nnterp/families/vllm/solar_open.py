"""Solar Open on vLLM: transformers' own blocks, through the Transformers backend."""

from ..solar_open import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
