"""StarCoder2 on vLLM: transformers' own blocks, through the Transformers backend."""

from ..starcoder2 import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
