"""HunYuan MoE on vLLM: transformers' own blocks, through the Transformers backend."""

from ..hunyuan_v1_moe import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
