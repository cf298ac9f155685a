"""Helium: LLaMA with neighbouring features rotated in pairs."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
