"""A.X K2: sparse latent attention with a gate on its heads; norms that are gated too."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
