"""Phi: attention and MLP side by side on one norm, part of each head rotated, biases all over."""

from . import llama
from .llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {"model.final_layernorm": "norm"}
