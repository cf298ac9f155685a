"""Granite MoE on vLLM: Granite with a mixture of experts for its MLP."""

from nnterp.families.granitemoe import RENAME
from nnterp.families.vllm.granite import ENVOYS, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]
