"""Reads residual streams that blocks pass on as two addends, which the next norm adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.lifetime import Reading
from nnterp.sites.base import Site
from nnterp.sites.mapped import untouched
from nnterp.sites.primitive import Argument


@dataclass(frozen=True)
class FusedInput(Site):
    """A `FusedInput` is the residual stream entering a block that is called with two addends.

    A fused block is called with its predecessor's last contribution, and with the residual that the
    contribution has not been added to yet; the first block is called with the stream alone.

    Attributes:
        of: The block, by its path from the host.
        hidden: The argument that the contribution is passed as.
        residual: The argument that the residual is passed as.
    """

    of: str = "."
    hidden: str = "hidden_states"
    residual: str = "residual"

    def location(self, host: Envoy) -> str:
        return self._hidden.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        residual = self._residual.get(host, raw)
        if residual is None:
            return self._hidden.read(host, raw)
        return Reading(self._hidden.get(host, raw) + residual, is_new_tensor=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        residual = self._residual.get(host, raw)
        if residual is None:
            return self._hidden.write(host, raw, tensor)
        hidden, residual = _as_addends(tensor, self._hidden.get(host, raw), residual)
        return self._residual.write(host, self._hidden.write(host, raw, hidden), residual)

    @property
    def _hidden(self) -> Argument:
        return Argument(self.hidden, self.of)

    @property
    def _residual(self) -> Argument:
        return Argument(self.residual, self.of)


@dataclass(frozen=True)
class FusedOutput(Site):
    """A `FusedOutput` is the residual stream leaving a block that returns it as two addends."""

    def location(self, host: Envoy) -> str:
        return f"{host.path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        hidden, residual = raw
        return Reading(hidden + residual, is_new_tensor=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return _as_addends(tensor, *raw)


def _as_addends(stream: Tensor, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Split an edited ``stream``, which was served as ``hidden + residual``, into two addends.

    All four tensors have one shape. The norm that adds the addends does not round their sum as the
    stream is rounded, so numbers that were not edited keep their addends. For edited numbers the
    first addend is zero: zero plus an edit is the edit in every dtype, and stays so where the first
    addend is summed over tensor-parallel ranks.
    """
    kept = untouched(stream, hidden + residual)
    return hidden.where(kept, 0.0), residual.where(kept, stream)
