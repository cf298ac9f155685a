"""BERT for generation on vLLM: transformers' own blocks, through the Transformers backend."""

from ...vllm.attention import Attention
from ...vllm.layer import SingleLayer
from ...vllm.mlp import Mlp
from ..bert_generation import ADDED_BY_ATTENTION, BEFORE_HEAD, RENAME

__all__ = ["BEFORE_HEAD", "ENVOYS", "RENAME"]


class Block(SingleLayer):
    """A block that norms its sums."""

    @property
    def sums(self) -> bool:
        return False


ENVOYS = {
    "layers.*": Block,
    "layers.*.self_attn": Attention.placed(attention_output=ADDED_BY_ATTENTION),
    "layers.*.output.dense": Mlp,
}
