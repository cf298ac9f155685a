"""OLMoE: a mixture of experts in every block, a norm over all queries and all keys."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
