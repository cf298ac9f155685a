"""OPT on vLLM: one tensor between blocks, queries that are scaled in the kernel alone."""

from ...vllm.layer import SingleLayer
from ..opt import BEFORE_HEAD, RENAME, sums
from . import gpt2

__all__ = ["BEFORE_HEAD", "ENVOYS", "RENAME"]


class Block(SingleLayer):
    """A block that norms its sums where the config says so."""

    @property
    def sums(self) -> bool:
        return sums(self)


ENVOYS = gpt2.ENVOYS | {"layers.*": Block}
