"""GLM: part of each head rotated, gate and up projections in one."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
