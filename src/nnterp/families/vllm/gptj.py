"""GPT-J on vLLM: one tensor between blocks, the adds written out."""

from nnterp.families.vllm.gpt2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
