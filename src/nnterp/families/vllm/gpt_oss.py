"""gpt-oss on vLLM: LLaMA's blocks under other names, with sinks and experts."""

from . import llama
from .llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = llama.RENAME | {"model.embedding": "embed_tokens", "attn": "self_attn"}
