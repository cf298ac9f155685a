"""BERT for generation: learned positions, and each half of a block added and then normed."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.families import openai_gpt
from nnterp.sites.primitive import Output

__all__ = ["ADDED_BY_ATTENTION", "BEFORE_HEAD", "ENVOYS", "RENAME"]

#: nnsight calls a module ``E_output`` where the model calls it ``output``.
RENAME = {
    "*.embeddings.word_embeddings": "embed_tokens",
    "*.encoder.layer": "layers",
    "attention.self": "self_attn",
    "E_output.dense": "mlp",
}

BEFORE_HEAD = ()

ADDED_BY_ATTENTION = Output(of="..E_output.dense")

ENVOYS = {
    "layers.*": openai_gpt.Block,
    "layers.*.self_attn": Attention.placed(attention_output=ADDED_BY_ATTENTION),
    "layers.*.output.dense": Mlp,
}
