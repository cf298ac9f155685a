"""Mixtral on vLLM: Mistral, its mixture of experts called ``block_sparse_moe``."""

from nnterp.families.vllm import mistral
from nnterp.families.vllm.mistral import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = mistral.RENAME | {"block_sparse_moe": "mlp"}
