"""ERNIE 4.5 MoE: ERNIE 4.5 with a corrected router and experts that see every token."""

from nnterp.families.ernie4_5 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
