"""Phi: attention and MLP side by side on one norm, part of each head rotated, biases all over."""

from nnterp.families import llama
from nnterp.families.llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {"model.final_layernorm": "norm"}
