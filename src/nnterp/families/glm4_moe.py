"""GLM-4.5: LLaMA with half of each head rotated and experts after the first blocks."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
