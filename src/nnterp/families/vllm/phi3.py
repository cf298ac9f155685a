"""Phi-3 on vLLM: LLaMA, whose fused projections vLLM has everywhere."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
