"""xLSTM: matrix memories with exponential gates in place of attention, capped logits."""

from ..components import Layer
from ..readout import capped
from ..sites import Argument
from . import qwen3_next

__all__ = ["ENVOYS", "NO_CACHE", "READOUT", "RENAME", "RIGHT_PADDED"]

RENAME = {
    "backbone.embeddings": "embed_tokens",
    "backbone.blocks": "layers",
    "backbone.out_norm": "norm",
    "mlstm_layer": "linear_attn",
    "ffn": "mlp",
}

ENVOYS = qwen3_next.ENVOYS | {"layers.*": Layer.placed(layer_input=Argument("x"))}

READOUT = capped("output_logit_soft_cap")

RIGHT_PADDED = "xLSTM takes padding before a token into its memory"
NO_CACHE = "xLSTM writes its memory in place, which a backward pass does not go through"
