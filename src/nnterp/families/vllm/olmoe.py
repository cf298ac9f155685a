"""OLMoE on vLLM: LLaMA with a mixture of experts in every block."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
