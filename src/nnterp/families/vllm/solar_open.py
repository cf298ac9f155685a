"""Solar Open on vLLM: transformers' own blocks, through the Transformers backend."""

from ..solar_open import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
