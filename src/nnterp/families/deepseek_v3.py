"""DeepSeek-V3: latents again, each pair of rotated features split over two halves."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
