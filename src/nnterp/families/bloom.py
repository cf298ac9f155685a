"""BLOOM: ALiBi in place of positions, a norm on the embeddings.

Attention and MLP are handed the stream and add to it themselves; the values are what they
add. ``attention_scores`` count ALiBi's distances from the query.
"""

from nnsight.intervention.envoy import Envoy

from nnterp.engines.transformers.envoys import Layer, Mlp
from nnterp.engines.transformers.envoys.own_attention import (
    OwnAttention,
    before_projection,
    from_own_position,
    scores,
)
from nnterp.families import llama
from nnterp.sites.primitive import Argument, Output
from nnterp.sites.source import OperationOutput

__all__ = ["ENVOYS", "RENAME", "is_residual_sum"]

RENAME = {
    "transformer.word_embeddings": "embed_tokens",
    "transformer.h": "layers",
    "transformer.ln_f": "norm",
    "self_attention": "self_attn",
}


def is_residual_sum(block: Envoy) -> bool:
    """Whether it is the stream itself that is added to, and not the stream normed."""
    return not block._module.apply_residual_connection_post_layernorm


class Block(Layer):
    """A block that adds to its norms where the config says so."""

    @property
    def is_residual_sum(self) -> bool:
        return is_residual_sum(self)


class Attention(OwnAttention):
    """BLOOM's attention, whose bias is known before its queries are."""

    between = dict.fromkeys(
        ("attention_queries", "attention_keys", "attention_values"), "attention_scores"
    )


ENVOYS = llama.ENVOYS | {
    "layers.*": Block,
    "layers.*.self_attn": Attention.placed(
        attention_queries=OperationOutput("self__reshape", index=0),
        attention_keys=OperationOutput("self__reshape", index=1),
        attention_values=OperationOutput("self__reshape", index=2),
        attention_scores=from_own_position(Argument("alibi"), scores("F_softmax")),
        attention_probabilities=OperationOutput("attention_probs"),
        attention_head_outputs=before_projection("dense"),
        attention_output=Output(of="dense"),
    ),
    "layers.*.mlp": Mlp.placed(mlp_output=Output(of="dense_4h_to_h")),
}
