"""Falcon: attention and MLP side by side or in sequence, ALiBi or rotary, by config.

Where each of a few keys and values serves many queries, the forward repeats them, and they
are served once.
"""

from nnsight.intervention.envoy import Envoy

from ..components import Mlp
from ..components.own import (
    BY_TOKEN,
    Bound,
    ByConfig,
    IntoProjection,
    Kept,
    OwnAttention,
    Repeated,
    scores,
)
from ..composed import Copied
from ..sites import Output, Site
from . import llama
from .bloom import RENAME

__all__ = ["ENVOYS", "RENAME"]


def repeats(attention: Envoy) -> int:
    """How often the forward holds each key and value."""
    module = attention._module
    return module.num_heads // module.num_kv_heads if module.new_decoder_architecture else 1


class Attention(OwnAttention):
    """Falcon's attention, which has its values before it rotates its queries."""

    between = dict.fromkeys(("attention_queries", "attention_keys"), "attention_values")


def where(unrotated: int, rotated: Site) -> ByConfig:
    """Where a value is: with ALiBi, as it left the projection."""
    return ByConfig("alibi", Bound("self__split_heads", unrotated, axes=BY_TOKEN), rotated)


ROTATED_QUERIES = Bound("apply_rotary_pos_emb", 0)
ROTATED_KEYS = Bound("apply_rotary_pos_emb", 1)
SOFTMAX = "F_softmax"

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        attention_queries=where(0, ROTATED_QUERIES),
        attention_keys=Repeated(where(1, ROTATED_KEYS), repeats),
        attention_values=Kept(where(2, Bound("value_layer")), where(2, ROTATED_KEYS), 1, repeats),
        attention_scores=ByConfig("alibi", scores(SOFTMAX), scores(SOFTMAX, which=0)),
        attention_probabilities=ByConfig("alibi", Bound(SOFTMAX), Bound(SOFTMAX, which=0)),
        attention_head_outputs=IntoProjection("dense"),
    ),
    # Side by side, the attention's output is added to the MLP's in place.
    "layers.*.mlp": Mlp.placed(mlp_output=Copied(Output())),
}
