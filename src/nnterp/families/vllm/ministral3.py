"""Ministral 3 on vLLM: Mistral whose queries grow with the position."""

from nnterp.families.vllm.mistral import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
