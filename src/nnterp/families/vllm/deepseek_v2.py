"""DeepSeek-V2 on vLLM: the kernel is handed the latents, and nothing per head but queries."""

from ...vllm.latent import LatentAttention
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.self_attn": LatentAttention}
