"""Granite MoE with windows and sinks on vLLM: Granite MoE with a shared expert."""

from nnterp.families.vllm.granitemoeshared import ENVOYS, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
