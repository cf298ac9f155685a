"""Granite with windows and sinks on vLLM: Granite, its kernel doing both."""

from nnterp.families.vllm.granite import ENVOYS, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
