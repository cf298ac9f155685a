"""Granite: LLaMA with a multiplier on the embedding, on each residual add and on the logits."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.readout import divided
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.mapped import of_block, scaled
from nnterp.sites.primitive import Argument, Output

__all__ = ["ADDED", "ENVOYS", "READOUT", "RENAME", "TOKEN_EMBEDDINGS"]

#: What a module of the block adds to the stream: its output, multiplied at the add.
ADDED = scaled(Output(), of_block("residual_multiplier"))

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED),
}

READOUT = divided("logits_scaling")

#: Multiplied outside its module, the embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")
