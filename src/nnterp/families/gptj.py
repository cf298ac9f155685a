"""GPT-J: attention and MLP side by side on one norm; rotated features in neighbouring pairs."""

from ..components.own import OwnAttention, in_function
from . import llama
from .gpt2 import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.self_attn": OwnAttention.placed(**in_function("self__attn"))}
