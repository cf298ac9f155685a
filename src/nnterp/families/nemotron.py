"""Nemotron: LLaMA with LayerNorm, squared ReLU without a gate, half of each head rotated."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
