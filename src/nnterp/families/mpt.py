"""MPT: ALiBi, no biases anywhere, an MLP that adds to the stream itself.

``attention_scores`` count ALiBi's distances from the query.
"""

from nnterp.engines.transformers.envoys import Mlp
from nnterp.engines.transformers.envoys.own_attention import (
    OwnAttention,
    before_projection,
    from_own_position,
    scores,
)
from nnterp.families import llama
from nnterp.sites.primitive import Output
from nnterp.sites.source import OperationOutput

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
        attention_queries=OperationOutput("query_states"),
        attention_keys=OperationOutput("key_states"),
        attention_values=OperationOutput("value_states"),
        attention_scores=from_own_position(
            OperationOutput("position_bias", axes=(0, 1, 2)), scores("nn_functional_softmax")
        ),
        attention_probabilities=OperationOutput("attn_weights"),
        attention_head_outputs=before_projection("out_proj"),
    ),
    "layers.*.mlp": Mlp.placed(mlp_output=Output(of="down_proj")),
}
