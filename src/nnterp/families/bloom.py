"""BLOOM: ALiBi in place of positions, a norm on the embeddings.

Attention and MLP are handed the stream and add to it themselves; the values are what they
add. ``attention_scores`` count ALiBi's distances from the query.
"""

from nnsight.intervention.envoy import Envoy

from ..components import Layer, Mlp
from ..components.own import Bound, IntoProjection, OwnAttention, Relative, scores
from ..sites import Argument, Output
from . import llama

__all__ = ["ENVOYS", "RENAME", "sums"]

RENAME = {
    "transformer.word_embeddings": "embed_tokens",
    "transformer.h": "layers",
    "transformer.ln_f": "norm",
    "self_attention": "self_attn",
}


def sums(block: Envoy) -> bool:
    """Whether it is the stream itself that is added to, and not the stream normed."""
    return not block._module.apply_residual_connection_post_layernorm


class Block(Layer):
    """A block that adds to its norms where the config says so."""

    @property
    def sums(self) -> bool:
        return sums(self)


class Attention(OwnAttention):
    """BLOOM's attention, whose bias is known before its queries are."""

    between = dict.fromkeys(
        ("attention_queries", "attention_keys", "attention_values"), "attention_scores"
    )


ENVOYS = llama.ENVOYS | {
    "layers.*": Block,
    "layers.*.self_attn": Attention.placed(
        attention_queries=Bound("self__reshape", 0),
        attention_keys=Bound("self__reshape", 1),
        attention_values=Bound("self__reshape", 2),
        attention_scores=Relative(Argument("alibi"), scores("F_softmax")),
        attention_probabilities=Bound("attention_probs"),
        attention_head_outputs=IntoProjection("dense"),
        attention_output=Output(of="dense"),
    ),
    "layers.*.mlp": Mlp.placed(mlp_output=Output(of="dense_4h_to_h")),
}
