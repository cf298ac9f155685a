"""Solar Open: sigmoid routing beside shared experts in every block."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
