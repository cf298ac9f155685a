"""EXAONE 4 on vLLM: one tensor between blocks, the norm and the add written out."""

from ...vllm.layer import SingleLayer
from ..exaone4 import RENAME
from . import gemma2

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = gemma2.ENVOYS | {"layers.*": SingleLayer}
