"""Qwen3.5, text, on vLLM: Qwen3-Next with dense MLPs."""

from nnterp.families.vllm.qwen3_next import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
