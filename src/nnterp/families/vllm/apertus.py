"""Apertus on vLLM: LLaMA with xIELU, whose two numbers are kept in bfloat16."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
