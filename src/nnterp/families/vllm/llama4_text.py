"""Llama 4, text, on vLLM: LLaMA, features of queries and keys moved for a rope by halves."""

from ...vllm.attention import KEYS, QUERIES, Attention
from ...vllm.rotary import Paired
from ..llama4_text import RENAME
from . import llama

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        attention_queries=Paired(QUERIES), attention_keys=Paired(KEYS)
    ),
}
