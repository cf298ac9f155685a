"""Persimmon on vLLM: transformers' own blocks, through the Transformers backend."""

from .phi import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
