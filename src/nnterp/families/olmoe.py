"""OLMoE: a mixture of experts in every block, a norm over all queries and all keys."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
