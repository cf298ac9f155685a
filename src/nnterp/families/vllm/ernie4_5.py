"""ERNIE 4.5 on vLLM: LLaMA that rotates neighbouring features."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
