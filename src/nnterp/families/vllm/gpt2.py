"""GPT-2 on vLLM: one tensor between blocks, the adds written out."""

from ...vllm.layer import SingleLayer
from ..gpt2 import RENAME
from . import llama

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*": SingleLayer}
