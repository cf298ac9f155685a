"""HyperCLOVA X on vLLM: one tensor between blocks, norms, multipliers and adds written out."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.hyperclovax import AFTER_ATTENTION, AFTER_MLP, RENAME
from nnterp.families.vllm import granite
from nnterp.families.vllm.granite import TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = granite.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
