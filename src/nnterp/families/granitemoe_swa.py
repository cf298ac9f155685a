"""Granite MoE with windows and sinks, and a shared expert in some."""

from nnterp.families import granitemoeshared
from nnterp.families.granite_swa import ATTENTION
from nnterp.families.granitemoeshared import READOUT, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = granitemoeshared.ENVOYS | {"layers.*.self_attn": ATTENTION}
