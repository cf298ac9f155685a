"""Qwen3-Next on vLLM: fused adds around either mixer."""

from ...vllm.attention import RecurrentMixer
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.linear_attn": RecurrentMixer}
