"""RecurrentGemma: two blocks of a gated linear recurrence to one of local attention."""

from transformers.models.recurrent_gemma.modeling_recurrent_gemma import TEMPORAL_BLOCK_CLASSES

from nnterp.engines.transformers.envoys import Layer
from nnterp.engines.transformers.envoys.readout import capped
from nnterp.families import llama, qwen3_next
from nnterp.sites.primitive import Argument

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
