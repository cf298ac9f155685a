"""GLM-4.5 on vLLM: LLaMA with experts after the first blocks."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
