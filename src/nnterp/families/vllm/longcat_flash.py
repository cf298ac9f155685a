"""LongCat-Flash on vLLM: the second half's addends fused into the next block's first norm."""

from nnterp.engines.vllm.envoys.latent_attention import HalvedLatentAttention
from nnterp.engines.vllm.envoys.layer import FusedLayer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.longcat_flash import RENAME

__all__ = ["ENVOYS", "RENAME"]


class DoubleLayer(FusedLayer):
    """A block of two attentions, two MLPs and a mixture."""

    @property
    def is_residual_sum(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return False


class Pair(HalvedLatentAttention):
    """The two attentions of a block, each of which serves its own values."""

    def unavailable(self, name: str) -> str | None:
        return "this block attends twice; ask self_attn[0] or self_attn[1]"


ENVOYS = {
    "layers.*": DoubleLayer,
    "layers.*.self_attn": Pair,
    "layers.*.self_attn.*": HalvedLatentAttention,
    "layers.*.mlps.*": Mlp,
    "layers.*.mlp": Mlp,
}
