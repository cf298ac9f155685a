"""DeepSeek-V3.2: latents, of which an indexer picks the few that each query sees."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
