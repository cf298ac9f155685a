"""VaultGemma: Gemma 2 without the norms after each half."""

from nnterp.families.gemma2 import READOUT
from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
