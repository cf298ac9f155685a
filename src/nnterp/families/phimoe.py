"""Phi-3.5 MoE: Mixtral with LayerNorms, biases and a router that masks what is far off."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
