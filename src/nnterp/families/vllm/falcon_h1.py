"""Falcon H1 on vLLM: attention first, then Mamba 2, and the adds written out."""

from ...composed import Joined
from ...vllm.attention import Attention
from ..falcon_h1 import BY_ATTENTION, BY_MAMBA, RENAME, TOKEN_EMBEDDINGS
from . import gpt2

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

ENVOYS = gpt2.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=Joined(BY_ATTENTION, BY_MAMBA)),
}
