"""GPT-NeoX on vLLM: transformers' own blocks around vLLM's attention kernel.

vLLM's Transformers backend serves it; earlier releases have a definition of their own.
"""

from ...vllm.layer import EitherLayer
from ..gpt_neox import RENAME
from . import llama

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*": EitherLayer}
