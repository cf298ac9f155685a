"""Falcon H1 on vLLM: attention first, then Mamba 2, and the adds written out."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.families.falcon_h1 import BY_ATTENTION, BY_MAMBA, RENAME, TOKEN_EMBEDDINGS
from nnterp.families.vllm import gpt2
from nnterp.sites.two_part import summed

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = gpt2.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=summed(BY_ATTENTION, BY_MAMBA)),
}
