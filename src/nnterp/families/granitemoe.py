"""Granite MoE: Granite with a mixture of experts for its MLP."""

from nnterp.families import granite
from nnterp.families.granite import ENVOYS, READOUT, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

RENAME = granite.RENAME | {"block_sparse_moe": "mlp"}
