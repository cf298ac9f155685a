"""Granite MoE on vLLM: Granite with a mixture of experts for its MLP."""

from ..granitemoe import RENAME
from .granite import ENVOYS, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
