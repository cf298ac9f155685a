"""MiniMax: linear attention in most blocks, mixtures of experts, and a stream normed as it enters.

What each half adds is weighed against the normed stream it is added to, so a block's output is
not the sum of its input and its parts.
"""

from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

from nnterp.engines.transformers.envoys import Attention, Layer, Mlp, RecurrentMixer
from nnterp.families.llama import RENAME
from nnterp.sites.mapped import of_block, scaled
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "GENERATES_UNPADDED", "RENAME"]


class Block(Layer):
    """A block whose norms are on the stream itself."""

    @property
    def is_residual_sum(self) -> bool:
        return False


ADDED_BY_MIXER = scaled(Output(), of_block("attn_beta_factor"))
ADDED_BY_MLP = scaled(Output(), of_block("mlp_beta_factor"))

ENVOYS = {
    MiniMaxLightningAttention: RecurrentMixer.placed(attention_output=ADDED_BY_MIXER),
    "layers.*": Block,
    "layers.*.self_attn": Attention.placed(attention_output=ADDED_BY_MIXER),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_MLP),
}

GENERATES_UNPADDED = "MiniMax does not see what is padding once it generates"
