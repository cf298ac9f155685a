"""Falcon H1: attention and Mamba 2 side by side on one norm, and a multiplier at every turn.

``attention_output`` is the sum of what the two add.
"""

from nnterp.engines.transformers.envoys import SecondMixer
from nnterp.engines.transformers.envoys.readout import multiplied
from nnterp.families import jamba, llama
from nnterp.sites.mapped import of_block, scaled
from nnterp.sites.primitive import Argument, Output
from nnterp.sites.two_part import summed

__all__ = [
    "BY_ATTENTION",
    "BY_MAMBA",
    "ENVOYS",
    "GENERATES_ALONE",
    "READOUT",
    "RENAME",
    "TOKEN_EMBEDDINGS",
]

BY_ATTENTION = scaled(Output(), of_block("attn_out_multiplier"))
BY_MAMBA = scaled(Output(of="..mamba"), of_block("ssm_out_multiplier"))

RENAME = {key: alias for key, alias in jamba.RENAME.items() if key != "mamba"}

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": SecondMixer.placed(attention_output=summed(BY_MAMBA, BY_ATTENTION)),
}

READOUT = multiplied("lm_head_multiplier")

TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")

GENERATES_ALONE = "Falcon H1's later steps take the rows of a batch for tokens of each row"
