"""Kimi Linear: most blocks carry a gated delta state, the others see latents, unrotated."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
