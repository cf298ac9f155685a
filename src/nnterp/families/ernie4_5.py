"""ERNIE 4.5: LLaMA that rotates neighbouring features."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
