"""Command R7B on vLLM: Command R, its windows one token longer than transformers'."""

from nnterp.families.vllm.cohere import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
