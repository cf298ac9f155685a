"""HyperCLOVA X: Granite with a norm after each half, and logits scaled up instead of down."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.readout import multiplied
from nnterp.families import granite
from nnterp.families.granite import RENAME, TOKEN_EMBEDDINGS
from nnterp.sites.base import Site
from nnterp.sites.choice import Either, has
from nnterp.sites.mapped import of_block, scaled
from nnterp.sites.primitive import Output

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
    normed = Either(has(norm), Output(of=norm), Output())
    return scaled(normed, of_block("residual_multiplier"))


AFTER_ATTENTION = _added("..post_norm1")
AFTER_MLP = _added("..post_norm2")

ENVOYS = granite.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}

READOUT = multiplied("logits_scaling")
