"""Values in two parts that the forward reaches one after the other.

The earlier part is read first and kept; once it is known, the value is at an ordinary site
where the later part is. An edit goes there, and makes up for the earlier part.
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
    """A value that needs an earlier part.

    Attributes:
        earlier: The part that the forward reaches first.
        last: The part that it reaches last, where the value is read and written.
    """

    earlier: Site
    last: Site

    #: Whether the earlier part is wanted as it is for the whole batch, because its first axis
    #: is not that of the batch.
    earlier_of_batch = False

    def location(self, host: Envoy) -> str:
        return self.last.location(host)

    def given(self, part: Tensor) -> Site:
        """The site of the whole value, once the earlier ``part`` is known."""
        raise NotImplementedError


@dataclass(frozen=True)
class WithPart(Mapped):
    """A value in two parts, of which the earlier is known: rows of one request or invoke."""

    holds_own_rows = True


@dataclass(frozen=True)
class Combined(TwoPart):
    """A value that is an invertible map of the later part, by the earlier.

    Attributes:
        to: The value: ``to(host, tensor, part)``, of the tensor at ``last``.
        back: What has to be at ``last`` for the value to be this: ``back(host, value, part)``.
        earlier_of_batch: Whether the earlier part is wanted as it is for the whole batch.
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
    """The sum of two parts, such as two modules' outputs."""
    return Combined(
        earlier,
        last,
        to=lambda host, tensor, part: tensor + _shaped(part, tensor),
        back=lambda host, value, part: value - _shaped(part, value),
    )


def _shaped(part: Tensor, like: Tensor) -> Tensor:
    """``part`` in the shape of ``like``, or in one that broadcasts to it."""
    return part.reshape(like.shape) if part.numel() == like.numel() else part


def locations(site: Site, host: Envoy) -> tuple[str, ...]:
    """Every location a value is read at, in the order the forward reaches them."""
    earlier = locations(site.earlier, host) if isinstance(site, TwoPart) else ()
    return (*earlier, site.location(host))
