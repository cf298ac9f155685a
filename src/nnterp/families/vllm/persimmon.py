"""Persimmon on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.vllm.phi import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
