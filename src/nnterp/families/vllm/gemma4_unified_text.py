"""Gemma 4 Unified, text, on vLLM: transformers' own blocks, which hand on keys and values."""

from ...vllm.mlp import Mlp
from ...vllm.shared_keys import SharingAttention
from ..gemma2 import AFTER_ATTENTION, AFTER_MLP
from ..gemma4_unified_text import RENAME
from .gemma4_text import RescalingLayer

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": RescalingLayer,
    "layers.*.self_attn": SharingAttention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
