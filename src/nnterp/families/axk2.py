"""A.X K2: sparse latent attention with a gate on its heads; norms that are gated too."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
