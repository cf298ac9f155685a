"""dots.llm1 on vLLM: transformers' own blocks, through the Transformers backend."""

from ..dots1 import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
