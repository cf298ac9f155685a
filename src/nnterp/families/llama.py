"""LLaMA: pre-norm blocks, grouped queries, rotary positions."""

from nnterp.engines.transformers.envoys import Attention, Layer, Mlp

RENAME = {
    "model.embed_tokens": "embed_tokens",
    "model.layers": "layers",
    "model.norm": "norm",
}

ENVOYS = {
    "layers.*": Layer,
    "layers.*.self_attn": Attention,
    "layers.*.mlp": Mlp,
}
