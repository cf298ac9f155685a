"""SmolLM3: LLaMA, one block in four of which has no positions."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
