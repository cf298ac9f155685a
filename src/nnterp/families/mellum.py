"""Mellum: windows and mixtures of experts, each on the blocks that the config lists."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
