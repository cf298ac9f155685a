"""SmolLM3 on vLLM: transformers' own blocks, through the Transformers backend."""

from ..smollm3 import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
