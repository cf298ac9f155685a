"""Gemma: LLaMA with scaled embeddings and norms that multiply by one plus their weight."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
