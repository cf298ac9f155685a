"""GPT, the first: each half of a block is added and then normed, and no norm is left to the end."""

from ..components import Layer
from ..components.own import Bound, IntoProjection, OwnAttention, Passed, in_function
from ..sites import Argument, Output
from . import llama

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
    def sums(self) -> bool:
        return False


ENVOYS = llama.ENVOYS | {
    "layers.*": Block.placed(layer_input=Argument("x")),
    "layers.*.self_attn": OwnAttention.placed(
        **in_function("self__attn")
        | {
            "attention_keys": Passed("self__attn", 1, axes=(0, 1, 3, 2)),
            "attention_probabilities": Bound("w", inside="self__attn"),
            "attention_head_outputs": IntoProjection("c_proj"),
        },
        attention_output=Output(of="c_proj"),
    ),
}
