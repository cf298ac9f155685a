"""Falcon Mamba on vLLM: Mamba with norms inside its mixer."""

from nnterp.families.vllm.mamba import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
