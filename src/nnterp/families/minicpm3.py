"""MiniCPM3: latent attention, and every add scaled down with the number of blocks."""

from ..components import Attention, Mlp
from ..composed import Scaled, of_block
from ..readout import divided
from ..sites import Output
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]

_ADDED = Scaled(Output(), of_block("residual_scale"))

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=_ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=_ADDED),
}

#: The projection has no bias, so that the stream may as well be divided after it.
READOUT = divided("logits_scaling")
