"""Qwen3-Next on vLLM: fused adds around either mixer."""

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.families.vllm import llama
from nnterp.families.vllm.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.linear_attn": RecurrentMixer}
