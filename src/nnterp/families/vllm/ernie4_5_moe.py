"""ERNIE 4.5 MoE on vLLM: ERNIE 4.5 with experts in some blocks."""

from nnterp.families.vllm.ernie4_5 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
