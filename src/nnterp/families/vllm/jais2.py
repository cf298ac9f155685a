"""Jais 2 on vLLM: transformers' own blocks, through the Transformers backend."""

from ..jais2 import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
