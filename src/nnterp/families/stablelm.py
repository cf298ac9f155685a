"""StableLM: LLaMA with LayerNorms and partial rotary, in parallel in some checkpoints."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
