"""Granite on vLLM: one tensor between blocks, the adds and their multipliers written out."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.granite import ADDED, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = {
    "layers.*": SingleLayer,
    "layers.*.self_attn": Attention.placed(attention_output=ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED),
}
