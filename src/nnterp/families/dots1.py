"""dots.llm1: dense blocks first, then sigmoid routing beside shared experts."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
