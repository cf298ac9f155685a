"""CTRL: sinusoidal positions added to a scaled embedding; its own names throughout."""

from nnterp.engines.transformers.envoys import Layer
from nnterp.families import llama
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import Argument, Output

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]

RENAME = {
    "transformer.w": "embed_tokens",
    "transformer.h": "layers",
    "transformer.layernorm": "norm",
    "multi_head_attention": "self_attn",
    "ffn": "mlp",
}

ENVOYS = llama.ENVOYS | {"layers.*": Layer.placed(layer_input=Argument("x"))}

TOKEN_EMBEDDINGS = scaled(Output(of="embed_tokens"), lambda model: model.hidden_size**0.5)
