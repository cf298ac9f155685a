"""EXAONE-MoE on vLLM: LLaMA with windows by block and experts."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
