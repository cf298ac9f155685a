"""Mamba 2: Mamba, its recurrence one scalar decay a head."""

from .mamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
