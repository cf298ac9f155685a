"""Mistral: LLaMA with a sliding window."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
