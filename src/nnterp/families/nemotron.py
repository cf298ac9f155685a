"""Nemotron: LLaMA with LayerNorm, squared ReLU without a gate, half of each head rotated."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
