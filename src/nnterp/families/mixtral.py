"""Mixtral: Mistral with a mixture of experts in every block."""

from .mistral import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
