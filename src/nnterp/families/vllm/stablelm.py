"""StableLM on vLLM: one tensor between blocks; the parallel checkpoints are not defined."""

from nnterp.families.stablelm import RENAME
from nnterp.families.vllm.gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
