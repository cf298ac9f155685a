"""Qwen3-Next: three blocks of gated delta rule to one of gated attention, mixtures of experts."""

from ..components import RecurrentMixer
from . import llama
from .llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.linear_attn": RecurrentMixer}
