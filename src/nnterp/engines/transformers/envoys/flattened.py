"""A value whose module is called with batch and sequence as one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from nnterp.lifetime import Reading, copied
from nnterp.sites.base import Site
from nnterp.sites.two_part import TwoPart


@dataclass(frozen=True)
class Unflattened(TwoPart):
    """A value in rows, ``last``, given the two axes of ``earlier``, which is no part of it.

    One that has them as it is, as of a dense block among others, keeps them. nnsight does not
    tell one invoke's rows from another's where they are one axis, so they are told apart here.
    """

    def given(self, part: Tensor) -> Site:
        return _Shaped(part.shape, self.last)


@dataclass(frozen=True)
class _Shaped(Site):
    shape: tuple[int, ...]
    rows: Site

    def location(self, host: Envoy) -> str:
        return self.rows.location(host)

    def _own(self, rows: Tensor) -> slice:
        """The rows of the running invoke."""
        batch, seq = self.shape[:2]
        group = Mediator.current("rows").batch_group
        start = group[0] * seq if group and len(rows) != batch * seq else 0
        return slice(start, start + batch * seq)

    def read(self, host: Envoy, raw: Any) -> Reading:
        reading = self.rows.read(host, raw)
        if reading.tensor.ndim > 2:
            return reading
        own = reading.tensor[self._own(reading.tensor)]
        return reading.mapped(own.reshape(*self.shape[:2], *own.shape[1:]))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        rows = self.rows.read(host, raw).tensor
        if rows.ndim > 2:
            return self.rows.write(host, raw, tensor)
        rows = copied(rows)
        own = self._own(rows)
        rows[own] = tensor.reshape(rows[own].shape)
        return self.rows.write(host, raw, rows)
