"""OLMo 2 on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.olmo2 import RENAME
from nnterp.families.vllm.exaone4 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
