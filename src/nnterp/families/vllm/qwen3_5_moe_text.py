"""Qwen3.5, text, with mixtures of experts, on vLLM: Qwen3-Next."""

from nnterp.families.vllm.qwen3_next import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
