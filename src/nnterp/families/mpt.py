"""MPT: ALiBi, no biases anywhere, an MLP that adds to the stream itself.

``attention_scores`` count ALiBi's distances from the query.
"""

from ..components import Mlp
from ..components.own import Bound, IntoProjection, OwnAttention, Relative, scores
from ..sites import Output
from . import llama

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "transformer.wte": "embed_tokens",
    "transformer.blocks": "layers",
    "transformer.norm_f": "norm",
    "attn": "self_attn",
    "ffn": "mlp",
}

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnAttention.placed(
        attention_queries=Bound("query_states"),
        attention_keys=Bound("key_states"),
        attention_values=Bound("value_states"),
        attention_scores=Relative(
            Bound("position_bias", axes=(0, 1, 2)), scores("nn_functional_softmax")
        ),
        attention_probabilities=Bound("attn_weights"),
        attention_head_outputs=IntoProjection("out_proj"),
    ),
    "layers.*.mlp": Mlp.placed(mlp_output=Output(of="down_proj")),
}
