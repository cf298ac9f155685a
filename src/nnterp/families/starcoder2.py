"""StarCoder2: LayerNorms with biases, and an MLP without a gate."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
