"""GPT-BigCode on vLLM: transformers' own blocks, through the Transformers backend."""

from ..gpt_bigcode import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
