"""GPT-NeoX on vLLM: transformers' own blocks around vLLM's attention kernel.

vLLM's Transformers backend serves it; earlier releases have a definition of their own.
"""

from nnterp.engines.vllm.envoys.layer import EitherLayer
from nnterp.families.gpt_neox import RENAME
from nnterp.families.vllm import llama

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*": EitherLayer}
