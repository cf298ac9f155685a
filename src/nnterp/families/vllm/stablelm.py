"""StableLM on vLLM: one tensor between blocks; the parallel checkpoints are not defined."""

from ..stablelm import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
