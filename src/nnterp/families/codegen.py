"""CodeGen: GPT-J with queries, values and keys fused in four shards."""

from nnterp.engines.transformers.envoys.own_attention import OwnAttention, in_function, scores
from nnterp.families import llama
from nnterp.families.gpt2 import RENAME

__all__ = ["ENVOYS", "RENAME"]

#: Products, masked, scaled; which makes the number of the mask smaller too.
SCORES = scores("attn_weights", inside="self__attn", which=2, below=-2e3)

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnAttention.placed(
        **in_function("self__attn") | {"attention_scores": SCORES}
    ),
}
