"""HunYuan MoE on vLLM: transformers' own blocks, through the Transformers backend."""

from nnterp.families.hunyuan_v1_moe import RENAME
from nnterp.families.vllm.gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
