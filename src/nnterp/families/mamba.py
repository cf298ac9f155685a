"""Mamba: each block is a norm and one recurrent mixer, with neither attention nor MLP."""

from nnterp.engines.transformers.envoys import Layer, RecurrentMixer

RENAME = {
    "backbone.embeddings": "embed_tokens",
    "backbone.layers": "layers",
    "backbone.norm_f": "norm",
    "mixer": "linear_attn",
}

ENVOYS = {
    "layers.*": Layer,
    "layers.*.linear_attn": RecurrentMixer,
}
