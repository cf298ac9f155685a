"""Granite MoE with a shared expert on vLLM: two modules whose outputs are added up."""

from ...vllm.mlp import Mlp
from ..granitemoeshared import ADDED_BY_BOTH, RENAME
from . import granitemoe
from .granitemoe import TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = granitemoe.ENVOYS | {"layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_BOTH)}
