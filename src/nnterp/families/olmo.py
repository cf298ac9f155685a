"""OLMo: LLaMA whose norms have no weights."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
