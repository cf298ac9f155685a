"""Inkling, text: each half ends in a short convolution over the tokens; no rope, but a bias.

The embedding is normed, and the logits are narrowed and cut to the vocabulary's true width.
"""

from typing import Any

from torch import Tensor

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.families import llama
from nnterp.families.llama import RENAME
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "READOUT", "RENAME", "RIGHT_PADDED"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=Output(of="..attn_sconv")),
    "layers.*.mlp": Mlp.placed(mlp_output=Output(of="..mlp_sconv")),
}


def _read(logits: Tensor, config: Any) -> Tensor:
    """The logits of the tokens there are, divided as the model divides what it reads them off."""
    return logits[..., : config.unpadded_vocab_size] / config.logits_mup_width_multiplier


READOUT = _read


def _right_padded(config: Any, tokens: int) -> str | None:
    floor = config.log_scaling_n_floor
    if floor is None or tokens <= floor:
        return None
    return f"Inkling scales queries by their place in the row from the {floor}th on"


RIGHT_PADDED = _right_padded
