"""GPT-2 on vLLM: one tensor between blocks, the adds written out."""

from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.families.gpt2 import RENAME
from nnterp.families.vllm import llama

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = llama.ENVOYS | {"layers.*": SingleLayer}
