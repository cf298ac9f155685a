"""DeepSeek-V3.2: latents, of which an indexer picks the few that each query sees."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
