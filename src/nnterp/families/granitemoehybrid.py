"""Granite 4: Mamba-2 or attention in each block, an MLP for every token, maybe experts.

``mlp`` is the MLP for every token, which all checkpoints have; ``mlp_output`` is what it and
the mixture of experts beside it add together, where there is one.
"""

from nnterp.engines.transformers.envoys import Mlp, RecurrentMixer
from nnterp.families import granite
from nnterp.families.granite import ADDED, READOUT, TOKEN_EMBEDDINGS
from nnterp.sites.choice import Either, has
from nnterp.sites.mapped import of_block, scaled, zeros
from nnterp.sites.primitive import Output
from nnterp.sites.two_part import summed

__all__ = ["ADDED_BY_BOTH", "ENVOYS", "MIXTURE", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

RENAME = granite.RENAME | {"mamba": "linear_attn", "shared_mlp": "mlp"}

MIXTURE = "..block_sparse_moe"

ADDED_BY_BOTH = summed(
    Either(has(MIXTURE), scaled(Output(of=MIXTURE), of_block("residual_multiplier")), zeros()),
    ADDED,
)


class SharedMlp(Mlp):
    """The MLP for every token, beside a mixture of experts if there is one."""

    mixture = MIXTURE


ENVOYS = granite.ENVOYS | {
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=ADDED),
    "layers.*.mlp": SharedMlp.placed(mlp_output=ADDED_BY_BOTH),
}
