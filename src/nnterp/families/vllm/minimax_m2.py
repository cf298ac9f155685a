"""MiniMax-M2 on vLLM: LLaMA's blocks, the mixture of experts as Mixtral's is called."""

from nnterp.families.vllm.mixtral import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
