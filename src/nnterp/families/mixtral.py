"""Mixtral: Mistral with a mixture of experts in every block."""

from nnterp.families.mistral import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
