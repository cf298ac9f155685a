"""OLMo 3 on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.vllm.olmo2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
