"""GPT-BigCode on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.gpt_bigcode import RENAME
from nnterp.families.vllm.gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
