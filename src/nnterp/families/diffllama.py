"""DiffLlama: what one half of the heads sees less a share of what the other half sees.

The heads of ``attention_head_outputs`` are the differences, half as many and twice as wide;
in all else the halves are side by side. The forward computes the pattern twice, for either
half of the values.
"""

from nnterp.engines.transformers.envoys import Attention
from nnterp.engines.transformers.envoys.attention import in_eager, masked
from nnterp.engines.transformers.envoys.own_attention import MadeBefore
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.mapped import ReadOnly
from nnterp.sites.source import OperationOutput

__all__ = ["ENVOYS", "RENAME"]


class DifferentialAttention(Attention):
    """Attention that has its values before it rotates its queries."""

    between = dict.fromkeys(("attention_queries", "attention_keys"), "attention_values")


ROTATED_QUERIES = OperationOutput("apply_rotary_pos_emb", index=0)
ROTATED_KEYS = OperationOutput("apply_rotary_pos_emb", index=1)
TWICE = "the forward computes it twice; go by the queries and keys that it is computed from"

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": DifferentialAttention.placed(
        attention_queries=ROTATED_QUERIES,
        attention_keys=ROTATED_KEYS,
        attention_values=MadeBefore(OperationOutput("value_states", which=0), ROTATED_KEYS),
        attention_scores=ReadOnly(masked(in_eager("nn_functional_softmax")), TWICE),
        attention_probabilities=ReadOnly(in_eager("torch_matmul"), TWICE),
        attention_head_outputs=OperationOutput("attn_output", which=2),
    ),
}
