"""OLMo 2: norms after attention and MLP and none before, queries and keys normed whole."""

from nnterp.families.gemma2 import AFTER_ATTENTION, AFTER_MLP, ENVOYS, RENAME

__all__ = ["AFTER_ATTENTION", "AFTER_MLP", "ENVOYS", "RENAME"]
