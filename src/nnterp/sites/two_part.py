"""Reads values in two parts that the forward reaches one after the other.

The earlier part is read first and kept. Once it is known, the value is at an ordinary site where
the later part is. An edit is written there, and is adjusted for the earlier part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.sites.base import Site
from nnterp.sites.mapped import Mapped


@dataclass(frozen=True)
class TwoPart(Site):
    """`TwoPart` is the base of sites of values that need an earlier part.

    Attributes:
        earlier: The part that the forward reaches first.
        last: The part that it reaches last, where the value is read and written.
    """

    earlier: Site
    last: Site

    #: Whether the earlier part is read for the whole batch, because its first axis is not the
    #: batch axis.
    earlier_of_batch = False

    def location(self, host: Envoy) -> str:
        return self.last.location(host)

    def given(self, part: Tensor) -> Site:
        """Return the site of the whole value, once the earlier ``part`` is known."""
        raise NotImplementedError


@dataclass(frozen=True)
class WithPart(Mapped):
    """A `WithPart` is a value whose earlier part is known; it is rows of one request or invoke."""

    holds_own_rows = True


@dataclass(frozen=True)
class Combined(TwoPart):
    """A `Combined` is a value that is an invertible function of the later part, given the earlier.

    Attributes:
        to: Computes the value from the tensor at ``last``: ``to(host, tensor, part)``.
        back: Computes the tensor that must be at ``last`` for the value to be ``value``:
            ``back(host, value, part)``.
        earlier_of_batch: Whether the earlier part is read for the whole batch.
    """

    to: Callable[[Any, Tensor, Tensor], Tensor]
    back: Callable[[Any, Tensor, Tensor], Tensor]
    earlier_of_batch: bool = False

    def given(self, part: Tensor) -> Site:
        return WithPart(
            self.last,
            to=lambda host, tensor: self.to(host, tensor, part),
            back=lambda host, value, held: self.back(host, value, part),
        )


def summed(earlier: Site, last: Site) -> Combined:
    """Return the site of the sum of two parts, such as two modules' outputs."""
    return Combined(
        earlier,
        last,
        to=lambda host, tensor, part: tensor + _shaped(part, tensor),
        back=lambda host, value, part: value - _shaped(part, value),
    )


def _shaped(part: Tensor, like: Tensor) -> Tensor:
    """Return ``part`` in the shape of ``like``, or unchanged, to be broadcast to it."""
    return part.reshape(like.shape) if part.numel() == like.numel() else part


def locations(site: Site, host: Envoy) -> tuple[str, ...]:
    """Return every location at which the value of ``site`` is read, in the order of the forward."""
    earlier = locations(site.earlier, host) if isinstance(site, TwoPart) else ()
    return (*earlier, site.location(host))
