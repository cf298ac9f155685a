"""DeepSeek-V2 on vLLM: the kernel is handed the latents, and nothing per head but queries."""

from nnterp.engines.vllm.envoys.latent_attention import LatentAttention
from nnterp.families.vllm import llama
from nnterp.families.vllm.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.self_attn": LatentAttention}
