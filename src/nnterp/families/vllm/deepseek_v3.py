"""DeepSeek-V3 on vLLM: rotated in pairs, and served in halves, as the checkpoint's own code."""

from nnterp.engines.vllm.envoys.latent_attention import HalvedLatentAttention
from nnterp.families.vllm import llama
from nnterp.families.vllm.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.self_attn": HalvedLatentAttention}
