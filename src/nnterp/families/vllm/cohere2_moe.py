"""Command with experts on vLLM: Command R7B, its windows one token longer as well."""

from nnterp.families.vllm.cohere2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
