"""HyperCLOVA X: Granite with a norm after each half, and logits scaled up instead of down."""

from ..components import Attention, Mlp
from ..composed import Either, Scaled, of_block
from ..readout import multiplied
from ..sites import Output, Site
from . import granite
from .granite import RENAME, TOKEN_EMBEDDINGS

__all__ = [
    "AFTER_ATTENTION",
    "AFTER_MLP",
    "ENVOYS",
    "READOUT",
    "RENAME",
    "TOKEN_EMBEDDINGS",
]


def _added(norm: str) -> Site:
    """What a half adds: multiplied at the add, after its norm if it has one."""
    normed = Either(norm, Output(of=norm), Output())
    return Scaled(normed, of_block("residual_multiplier"))


AFTER_ATTENTION = _added("..post_norm1")
AFTER_MLP = _added("..post_norm2")

ENVOYS = granite.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}

READOUT = multiplied("logits_scaling")
