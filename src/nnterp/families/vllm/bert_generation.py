"""BERT for generation on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.bert_generation import ADDED_BY_ATTENTION, BEFORE_HEAD, RENAME

__all__ = ["BEFORE_HEAD", "ENVOYS", "RENAME"]


class Block(SingleLayer):
    """A block that norms its sums."""

    @property
    def is_residual_sum(self) -> bool:
        return False


ENVOYS = {
    "layers.*": Block,
    "layers.*.self_attn": Attention.placed(attention_output=ADDED_BY_ATTENTION),
    "layers.*.output.dense": Mlp,
}
