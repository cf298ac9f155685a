"""XGLM: sinusoidal positions, and no module for the MLP, whose last linear map stands for it.

``attention_queries`` are unscaled, so that their products with the keys still have to be.
"""

from ..components.own import BY_TOKEN, Bound, IntoProjection, OwnAttention, scores
from ..composed import Scaled
from . import llama, opt

__all__ = ["ENVOYS", "RENAME"]

RENAME = {
    "model.embed_tokens": "embed_tokens",
    "model.layers": "layers",
    "model.layer_norm": "norm",
    "fc2": "mlp",
}

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": OwnAttention.placed(
        attention_queries=Scaled(Bound("query_states", axes=BY_TOKEN, which=0), opt.unscaled),
        attention_keys=Bound("key_states_view", axes=BY_TOKEN),
        attention_values=Bound("value_states_view", axes=BY_TOKEN),
        attention_scores=scores("attn_weights", which=2),
        attention_probabilities=Bound("attn_weights_reshaped"),
        attention_head_outputs=IntoProjection("out_proj"),
    ),
}
