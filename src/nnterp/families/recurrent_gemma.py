"""RecurrentGemma: two blocks of a gated linear recurrence to one of local attention."""

from transformers.models.recurrent_gemma.modeling_recurrent_gemma import TEMPORAL_BLOCK_CLASSES

from ..components import Layer
from ..readout import capped
from ..sites import Argument
from . import llama, qwen3_next

__all__ = ["ENVOYS", "READOUT", "RENAME", "RIGHT_PADDED", "TOKEN_EMBEDDINGS"]

#: The two mixers go by one name, and are told apart by class.
RENAME = llama.RENAME | {
    "model.final_norm": "norm",
    "mlp_block": "mlp",
    TEMPORAL_BLOCK_CLASSES["attention"]: "self_attn",
    TEMPORAL_BLOCK_CLASSES["recurrent"]: "linear_attn",
}

ENVOYS = qwen3_next.ENVOYS | {"layers.*": Layer.placed(layer_input=Argument("activations"))}

READOUT = capped("logits_soft_cap")

TOKEN_EMBEDDINGS = Argument("activations", of="layers.0")

RIGHT_PADDED = "RecurrentGemma takes padding before a token into its state"
