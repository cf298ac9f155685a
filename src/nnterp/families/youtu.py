"""Youtu-LLM: DeepSeek-V3's latents before MLPs that are all dense."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
