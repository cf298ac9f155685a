"""Granite MoE with windows and sinks on vLLM: Granite MoE with a shared expert."""

from .granitemoeshared import ENVOYS, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
