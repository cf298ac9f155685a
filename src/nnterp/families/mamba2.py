"""Mamba 2: Mamba, its recurrence one scalar decay a head."""

from nnterp.families.mamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
