"""Phi-3 on vLLM: LLaMA, whose fused projections vLLM has everywhere."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
