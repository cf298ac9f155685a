"""Gemma 2 on vLLM: fused and sandwiched, the embedding scaled outside its module."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.gemma2 import AFTER_ATTENTION, AFTER_MLP
from nnterp.families.vllm import llama
from nnterp.sites.fused import FusedInput

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

#: There is no ``lm_head``: the logits come from the embedding.
RENAME = llama.RENAME | {"model.embed_tokens": ["embed_tokens", "lm_head"]}

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}

#: The scaled embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = FusedInput(of="layers.0")
