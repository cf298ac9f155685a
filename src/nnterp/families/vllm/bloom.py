"""BLOOM on vLLM: attention and MLP return what they add, and the block adds it."""

from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.families.bloom import RENAME, is_residual_sum
from nnterp.families.vllm import gpt2

__all__ = ["ENVOYS", "RENAME"]


class Block(SingleLayer):
    """A block that adds to its norms where the config says so."""

    @property
    def is_residual_sum(self) -> bool:
        return is_residual_sum(self)


ENVOYS = gpt2.ENVOYS | {"layers.*": Block}
