"""Qwen3-Next: three blocks of gated delta rule to one of gated attention, mixtures of experts."""

from nnterp.engines.transformers.envoys import RecurrentMixer
from nnterp.families import llama
from nnterp.families.llama import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.linear_attn": RecurrentMixer}
