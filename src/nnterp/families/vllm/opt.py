"""OPT on vLLM: one tensor between blocks, queries that are scaled in the kernel alone."""

from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.families.opt import BEFORE_HEAD, RENAME, is_residual_sum
from nnterp.families.vllm import gpt2

__all__ = ["BEFORE_HEAD", "ENVOYS", "RENAME"]


class Block(SingleLayer):
    """A block that norms its sums where the config says so."""

    @property
    def is_residual_sum(self) -> bool:
        return is_residual_sum(self)


ENVOYS = gpt2.ENVOYS | {"layers.*": Block}
