"""Arcee on vLLM: transformers' own blocks, through the Transformers backend."""

from ..arcee import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
