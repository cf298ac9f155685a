"""Falcon Mamba on vLLM: Mamba with norms inside its mixer."""

from .mamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
