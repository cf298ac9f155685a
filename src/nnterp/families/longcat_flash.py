"""LongCat-Flash: every block attends twice, a mixture of experts beside its second half.

A block is two halves, each an attention and a dense MLP, and a mixture that reads the stream
in the middle of the first and is added at the end of the second. So no one tensor is what
attention adds, or what MLPs do: ``self_attn[0]``, ``self_attn[1]``, ``mlps[0]``, ``mlps[1]``
and ``mlp``, the mixture, each serve their own.
"""

from nnterp.engines.transformers.envoys import Attention, Layer, Mlp
from nnterp.families.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]


class DoubleLayer(Layer):
    """A block of two attentions, two MLPs and a mixture."""

    @property
    def is_residual_sum(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return False


class Pair(Attention):
    """The two attentions of a block, each of which serves its own values."""

    def unavailable(self, name: str) -> str | None:
        return "this block attends twice; ask self_attn[0] or self_attn[1]"


ENVOYS = {
    "layers.*": DoubleLayer,
    "layers.*.self_attn": Pair,
    "layers.*.self_attn.*": Attention,
    "layers.*.mlps.*": Mlp,
    "layers.*.mlp": Mlp,
}
