"""StableLM: LLaMA with LayerNorms and partial rotary, in parallel in some checkpoints."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
