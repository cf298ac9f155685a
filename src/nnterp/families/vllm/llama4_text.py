"""Llama 4, text, on vLLM: LLaMA, features of queries and keys moved for a rope by halves."""

from nnterp.engines.vllm.envoys.attention import KEYS, QUERIES, Attention
from nnterp.engines.vllm.envoys.rotary import paired
from nnterp.families.llama4_text import RENAME
from nnterp.families.vllm import llama

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {
    "layers.*.self_attn": Attention.placed(
        attention_queries=paired(QUERIES), attention_keys=paired(KEYS)
    ),
}
