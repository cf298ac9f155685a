"""DeepSeek-V3: latents again, each pair of rotated features split over two halves."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
