"""GPT-J: attention and MLP side by side on one norm; rotated features in neighbouring pairs."""

from nnterp.engines.transformers.envoys.own_attention import OwnAttention, in_function
from nnterp.families import llama
from nnterp.families.gpt2 import RENAME

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*.self_attn": OwnAttention.placed(**in_function("self__attn"))}
