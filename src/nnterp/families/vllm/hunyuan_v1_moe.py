"""HunYuan MoE on vLLM: transformers' own blocks, through the Transformers backend."""

from ..hunyuan_v1_moe import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
