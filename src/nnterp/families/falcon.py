"""Falcon: attention and MLP side by side or in sequence, ALiBi or rotary, by config.

Where each of a few keys and values serves many queries, the forward repeats them, and they
are served once.
"""

from nnsight.intervention.envoy import Envoy

from nnterp.engines.transformers.envoys import Mlp
from nnterp.engines.transformers.envoys.own_attention import (
    MadeBefore,
    OwnAttention,
    before_projection,
    repeated,
    scores,
)
from nnterp.families import llama
from nnterp.families.bloom import RENAME
from nnterp.sites.base import Site
from nnterp.sites.choice import Either, configured
from nnterp.sites.mapped import changed_later
from nnterp.sites.primitive import Output
from nnterp.sites.source import BY_TOKEN, OperationOutput

__all__ = ["ENVOYS", "RENAME"]


def repeats(attention: Envoy) -> int:
    """How often the forward holds each key and value."""
    module = attention._module
    return module.num_heads // module.num_kv_heads if module.new_decoder_architecture else 1


class Attention(OwnAttention):
    """Falcon's attention, which has its values before it rotates its queries."""

    between = dict.fromkeys(("attention_queries", "attention_keys"), "attention_values")


def where(unrotated: int, rotated: Site) -> Either:
    """Where a value is: with ALiBi, as it left the projection."""
    return Either(
        configured("alibi"),
        OperationOutput("self__split_heads", index=unrotated, axes=BY_TOKEN),
        rotated,
    )


ROTATED_QUERIES = OperationOutput("apply_rotary_pos_emb", index=0)
ROTATED_KEYS = OperationOutput("apply_rotary_pos_emb", index=1)
SOFTMAX = "F_softmax"

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        attention_queries=where(0, ROTATED_QUERIES),
        attention_keys=repeated(where(1, ROTATED_KEYS), repeats),
        attention_values=MadeBefore(
            where(2, OperationOutput("value_layer")), where(2, ROTATED_KEYS), repeats
        ),
        attention_scores=Either(configured("alibi"), scores(SOFTMAX), scores(SOFTMAX, which=0)),
        attention_probabilities=Either(
            configured("alibi"), OperationOutput(SOFTMAX), OperationOutput(SOFTMAX, which=0)
        ),
        attention_head_outputs=before_projection("dense"),
    ),
    # Side by side, the attention's output is added to the MLP's in place.
    "layers.*.mlp": Mlp.placed(mlp_output=changed_later(Output())),
}
