"""Mellum on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.mellum import RENAME
from nnterp.families.vllm.gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
