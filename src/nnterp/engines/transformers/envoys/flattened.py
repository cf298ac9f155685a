"""Serves values of modules that are called with batch and sequence as one axis."""

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
    """An `Unflattened` is a value in rows at ``last``, given the leading axes of ``earlier``.

    ``[batch * seq, ...]`` becomes ``[batch, seq, ...]``. ``earlier`` gives its shape alone, and is
    no part of the value. A value with more than two axes, as of a dense block among others, has
    both axes already and is left as it is. nnsight does not tell the rows of one invoke from
    another's where batch and sequence are one axis, so they are told apart here.
    """

    def given(self, part: Tensor) -> Site:
        return _Shaped(part.shape, self.last)


@dataclass(frozen=True)
class _Shaped(Site):
    """`_Shaped` is the site of the value once its ``shape`` is known.

    Attributes:
        shape: The shape of the earlier part, which begins with batch and seq.
        rows: The site of the rows, ``[batch * seq, ...]``.
    """

    shape: tuple[int, ...]
    rows: Site

    def location(self, host: Envoy) -> str:
        return self.rows.location(host)

    def _own(self, rows: Tensor) -> slice:
        """Return which of the rows are the running invoke's."""
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
