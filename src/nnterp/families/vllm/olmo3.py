"""OLMo 3 on vLLM: transformers' own blocks, through the Transformers backend."""

from .olmo2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
