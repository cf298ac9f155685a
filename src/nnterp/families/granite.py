"""Granite: LLaMA with a multiplier on the embedding, on each residual add and on the logits."""

from ..components import Attention, Mlp
from ..composed import Scaled, of_block
from ..readout import divided
from ..sites import Argument, Output
from . import llama
from .llama import RENAME

__all__ = ["ADDED", "ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

#: What a module of the block adds to the stream: its output, multiplied at the add.
ADDED = Scaled(Output(), of_block("residual_multiplier"))

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED),
}

READOUT = divided("logits_scaling")

#: Multiplied outside its module, the embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")
