"""GLM: part of each head rotated, gate and up projections in one."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
