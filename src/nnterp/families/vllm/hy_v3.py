"""Hunyuan 3 on vLLM: fused blocks, but the last add written out before the final norm."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
