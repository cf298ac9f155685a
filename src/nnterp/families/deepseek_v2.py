"""DeepSeek-V2: keys and values made of one latent a token; shared beside routed experts."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
