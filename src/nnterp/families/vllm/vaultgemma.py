"""VaultGemma on vLLM: transformers' own blocks and scaled embedding."""

from ..vaultgemma import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
