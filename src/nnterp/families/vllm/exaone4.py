"""EXAONE 4 on vLLM: one tensor between blocks, the norm and the add written out."""

from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.families.exaone4 import RENAME
from nnterp.families.vllm import gemma2

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = gemma2.ENVOYS | {"layers.*": SingleLayer}
