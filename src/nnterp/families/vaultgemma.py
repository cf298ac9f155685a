"""VaultGemma: Gemma 2 without the norms after each half."""

from .gemma2 import READOUT
from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
