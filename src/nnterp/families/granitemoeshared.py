"""Granite MoE with a shared expert: an MLP beside the mixture, what both give added up."""

from nnterp.engines.transformers.envoys import Mlp
from nnterp.families import granitemoe
from nnterp.families.granite import ADDED
from nnterp.families.granitemoe import READOUT, RENAME, TOKEN_EMBEDDINGS
from nnterp.sites.choice import Either, has
from nnterp.sites.mapped import of_block, scaled, zeros
from nnterp.sites.primitive import Output
from nnterp.sites.two_part import summed

__all__ = ["ADDED_BY_BOTH", "ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

SHARED = "..shared_mlp"

#: The mixture runs first; without a shared expert it is all there is.
ADDED_BY_BOTH = summed(
    Either(has(SHARED), ADDED, zeros()),
    scaled(Either(has(SHARED), Output(of=SHARED), Output()), of_block("residual_multiplier")),
)

ENVOYS = granitemoe.ENVOYS | {"layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_BOTH)}
