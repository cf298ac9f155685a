"""XGLM: sinusoidal positions, and no module for the MLP, whose last linear map stands for it.

``attention_queries`` are unscaled, so that their products with the keys still have to be.
"""

from nnterp.engines.transformers.envoys.own_attention import OwnAttention, before_projection, scores
from nnterp.families import llama, opt
from nnterp.sites.mapped import scaled
from nnterp.sites.source import BY_TOKEN, OperationOutput

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "model.embed_tokens": "embed_tokens",
    "model.layers": "layers",
    "model.layer_norm": "norm",
    "fc2": "mlp",
}

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnAttention.placed(
        attention_queries=scaled(
            OperationOutput("query_states", axes=BY_TOKEN, which=0), opt.unscaled
        ),
        attention_keys=OperationOutput("key_states_view", axes=BY_TOKEN),
        attention_values=OperationOutput("value_states_view", axes=BY_TOKEN),
        attention_scores=scores("attn_weights", which=2),
        attention_probabilities=OperationOutput("attn_weights_reshaped"),
        attention_head_outputs=before_projection("out_proj"),
    ),
}
