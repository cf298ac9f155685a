"""Gemma 2 on vLLM: fused and sandwiched, the embedding scaled outside its module."""

from ...sites import FusedInput, Output
from ...vllm.attention import Attention
from ...vllm.mlp import Mlp
from . import llama

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

#: There is no ``lm_head``: the logits come from the embedding.
RENAME = llama.RENAME | {"model.embed_tokens": ["embed_tokens", "lm_head"]}


class SandwichedAttention(Attention):
    """What it adds to the stream is its output after the block's post-norm."""

    attention_output = Attention.attention_output.at(Output(of="..post_attention_layernorm"))


class SandwichedMlp(Mlp):
    """What it adds to the stream is its output after the block's post-norm."""

    mlp_output = Mlp.mlp_output.at(Output(of="..post_feedforward_layernorm"))


ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": SandwichedAttention,
    "layers.*.mlp": SandwichedMlp,
}

#: The scaled embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = FusedInput(of="layers.0")
