"""Nemotron on vLLM: LLaMA with LayerNorm in place of its norm."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
