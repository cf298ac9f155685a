"""MiniCPM3: latent attention, and every add scaled down with the number of blocks."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.readout import divided
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.mapped import of_block, scaled
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "READOUT", "RENAME"]

_ADDED = scaled(Output(), of_block("residual_scale"))

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=_ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=_ADDED),
}

#: The projection has no bias, so that the stream may as well be divided after it.
READOUT = divided("logits_scaling")
