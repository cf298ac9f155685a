"""LFM2 with mixtures of experts, on vLLM."""

from nnterp.families.vllm.lfm2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
