"""BitNet: a norm inside each half, before its output projection."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
