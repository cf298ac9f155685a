"""Gemma: LLaMA with scaled embeddings and norms that multiply by one plus their weight."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
