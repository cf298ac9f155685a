"""OLMo 2 on vLLM: transformers' own blocks, through the Transformers backend."""

from ..olmo2 import RENAME
from .exaone4 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
