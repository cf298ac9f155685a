"""gpt-oss on vLLM: LLaMA's blocks under other names, with sinks and experts."""

from nnterp.families.vllm import llama
from nnterp.families.vllm.llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {"model.embedding": "embed_tokens", "attn": "self_attn"}
