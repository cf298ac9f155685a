"""MiMo-V2-Flash on vLLM: LLaMA, key and value heads counted block by block, sinks."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
