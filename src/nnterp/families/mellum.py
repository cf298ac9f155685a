"""Mellum: windows and mixtures of experts, each on the blocks that the config lists."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
