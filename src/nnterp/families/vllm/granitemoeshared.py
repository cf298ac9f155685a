"""Granite MoE with a shared expert on vLLM: two modules whose outputs are added up."""

from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.granitemoeshared import ADDED_BY_BOTH, RENAME
from nnterp.families.vllm import granitemoe
from nnterp.families.vllm.granitemoe import TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = granitemoe.ENVOYS | {"layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_BOTH)}
