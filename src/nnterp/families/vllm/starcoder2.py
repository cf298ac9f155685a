"""StarCoder2 on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.starcoder2 import RENAME
from nnterp.families.vllm.gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
