"""Jais 2: LayerNorms with biases, squared ReLU in an MLP without a gate."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
