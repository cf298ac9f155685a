"""Nemotron on vLLM: LLaMA with LayerNorm in place of its norm."""

from nnterp.families.vllm.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
