"""Gemma 4 Unified, text, on vLLM: transformers' own blocks, which hand on keys and values."""

from nnterp.engines.vllm.envoys.kv_sharing import KVSharingAttention
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.gemma2 import AFTER_ATTENTION, AFTER_MLP
from nnterp.families.gemma4_unified_text import RENAME
from nnterp.families.vllm.gemma4_text import RescalingLayer

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = {
    "layers.*": RescalingLayer,
    "layers.*.self_attn": KVSharingAttention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=AFTER_MLP),
}
