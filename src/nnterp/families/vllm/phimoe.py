"""Phi-3.5 MoE on vLLM: one tensor between blocks, the mixture under its older name."""

from nnterp.families import phimoe
from nnterp.families.vllm.gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = phimoe.RENAME | {"block_sparse_moe": "mlp"}
