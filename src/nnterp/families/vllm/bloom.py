"""BLOOM on vLLM: attention and MLP return what they add, and the block adds it."""

from ...vllm.layer import SingleLayer
from ..bloom import RENAME, sums
from . import gpt2

__all__ = ["ENVOYS", "RENAME"]


class Block(SingleLayer):
    """A block that adds to its norms where the config says so."""

    @property
    def sums(self) -> bool:
        return sums(self)


ENVOYS = gpt2.ENVOYS | {"layers.*": Block}
