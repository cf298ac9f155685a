"""GPT, the first: each half of a block is added and then normed, and no norm is left to the end."""

from nnterp.engines.transformers.envoys import Layer
from nnterp.engines.transformers.envoys.own_attention import (
    OwnAttention,
    before_projection,
    in_function,
)
from nnterp.families import llama
from nnterp.sites.primitive import Argument, Output
from nnterp.sites.source import AttentionArgument, OperationOutput

__all__ = ["BEFORE_HEAD", "ENVOYS", "RENAME", "Block"]

RENAME = {
    "transformer.tokens_embed": "embed_tokens",
    "transformer.h": "layers",
    "attn": "self_attn",
}

BEFORE_HEAD = ()


class Block(Layer):
    """A block that norms its sums."""

    @property
    def is_residual_sum(self) -> bool:
        return False


ENVOYS = llama.ENVOYS | {
    "layers.*": Block.placed(layer_input=Argument("x")),
    "layers.*.self_attn": OwnAttention.placed(
        **in_function("self__attn")
        | {
            "attention_keys": AttentionArgument("self__attn", 1, axes=(0, 1, 3, 2)),
            "attention_probabilities": OperationOutput("w", inside="self__attn"),
            "attention_head_outputs": before_projection("c_proj"),
        },
        attention_output=Output(of="c_proj"),
    ),
}
