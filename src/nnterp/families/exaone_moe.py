"""EXAONE-MoE: pre-norm, windows with rope and full attention without, experts in some blocks."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
