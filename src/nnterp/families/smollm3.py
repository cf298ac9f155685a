"""SmolLM3: LLaMA, one block in four of which has no positions."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
