"""Granite MoE with a shared expert: an MLP beside the mixture, what both give added up."""

from ..components import Mlp
from ..composed import Either, Joined, Nothing, Scaled, of_block
from ..sites import Output
from . import granitemoe
from .granite import ADDED
from .granitemoe import READOUT, RENAME, TOKEN_EMBEDDINGS

__all__ = ["ADDED_BY_BOTH", "ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

SHARED = "..shared_mlp"

#: The mixture runs first; without a shared expert it is all there is.
ADDED_BY_BOTH = Joined(
    Either(SHARED, ADDED, Nothing()),
    Scaled(Either(SHARED, Output(of=SHARED), Output()), of_block("residual_multiplier")),
)

ENVOYS = granitemoe.ENVOYS | {"layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_BOTH)}
