"""Phi on vLLM: transformers' own blocks, through the Transformers backend."""

from ..phi import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
