"""DiffLlama: what one half of the heads sees less a share of what the other half sees.

The heads of ``attention_head_outputs`` are the differences, half as many and twice as wide;
in all else the halves are side by side. The forward computes the pattern twice, for either
half of the values.
"""

from ..components import Attention
from ..components.attention import EagerArgument, Masked
from ..components.own import Bound, Kept
from ..composed import ReadOnly
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]


class DifferentialAttention(Attention):
    """Attention that has its values before it rotates its queries."""

    between = dict.fromkeys(("attention_queries", "attention_keys"), "attention_values")


ROTATED_QUERIES = Bound("apply_rotary_pos_emb", 0)
ROTATED_KEYS = Bound("apply_rotary_pos_emb", 1)
TWICE = "the forward computes it twice; edit the queries and keys it is computed from"

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": DifferentialAttention.placed(
        attention_queries=ROTATED_QUERIES,
        attention_keys=ROTATED_KEYS,
        attention_values=Kept(Bound("value_states", which=0), ROTATED_KEYS),
        attention_scores=ReadOnly(Masked(EagerArgument("nn_functional_softmax")), TWICE),
        attention_probabilities=ReadOnly(EagerArgument("torch_matmul"), TWICE),
        attention_head_outputs=Bound("attn_output", which=2),
    ),
}
