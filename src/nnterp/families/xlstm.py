"""xLSTM: matrix memories with exponential gates in place of attention, capped logits."""

from nnterp.engines.transformers.envoys import Layer
from nnterp.engines.transformers.envoys.readout import capped
from nnterp.families import qwen3_next
from nnterp.sites.primitive import Argument

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
