"""OLMo: LLaMA whose norms have no weights."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
