"""DeepSeek-V3 on vLLM: rotated in pairs, and served in halves, as the checkpoint's own code."""

from ...vllm.latent import HalvedLatentAttention
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.self_attn": HalvedLatentAttention}
