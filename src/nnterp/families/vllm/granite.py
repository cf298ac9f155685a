"""Granite on vLLM: one tensor between blocks, the adds and their multipliers written out."""

from ...vllm.attention import Attention
from ...vllm.layer import SingleLayer
from ...vllm.mlp import Mlp
from ..granite import ADDED, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = {
    "layers.*": SingleLayer,
    "layers.*.self_attn": Attention.placed(attention_output=ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED),
}
