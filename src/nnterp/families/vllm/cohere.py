"""Command R on vLLM: one tensor between blocks, norms that return a pair, no head of its own."""

from typing import Any

from torch import Tensor

from .. import llama
from .gpt2 import ENVOYS

__all__ = ["AFTER_NORM", "ENVOYS", "RENAME"]

#: There is no ``lm_head``: the logits come from the embedding.
RENAME = llama.RENAME | {"model.embed_tokens": ["embed_tokens", "lm_head"]}


def _first(normed: tuple[Tensor, Any], config: Any) -> Tensor:
    return normed[0]


#: The norm returns the residual it was given as well.
AFTER_NORM = _first
