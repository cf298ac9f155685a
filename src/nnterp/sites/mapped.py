"""Values that are a function of what is at another site.

A `Mapped` value has a way there and a way back, two small functions that a family states; a
`Computed` one has the way there alone, and is read only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input
from torch import Tensor

from nnterp.lifetime import Reading, copied
from nnterp.sites.base import Site, module_at
from nnterp.sites.primitive import FirstArgument

#: From the host and the tensor at the site to the value.
To = Callable[[Any, Tensor], Tensor]

#: From the host, the value, and the tensor at the site as it is, to the tensor to put there.
Back = Callable[[Any, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Mapped(Site):
    """A value that is an invertible map of what is at ``site``.

    Attributes:
        site: Where what it is made of is.
        to: The value, of the tensor there: ``to(host, tensor)``.
        back: What has to be there for the value to be this: ``back(host, value, held)``, where
            ``held`` is there now.
        exact: Whether there and back again is the identity, as of a rearrangement. Where the
            map computes, it is not in floating point: a write then changes the numbers that
            were changed and leaves the others as they were, to the bit.
    """

    site: Site
    to: To
    back: Back
    exact: bool = False

    @property
    def read_only(self) -> str | None:  # type: ignore[override]
        return self.site.read_only

    def missing(self, host: Envoy) -> str | None:
        return self.site.missing(host)

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        held = self.site.read(host, raw)
        return held.mapped(self.to(host, held.tensor))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        held = self.site.read(host, raw).tensor
        computed = self.back(host, tensor, held)
        if not self.exact:
            kept = untouched(tensor, self.to(host, held))
            # A number left alone is still made of the value, as far as gradients go.
            computed = straight_through(torch.where(kept, held, computed), computed)
        return self.site.write(host, raw, computed)


def untouched(edited: Tensor, served: Tensor) -> Tensor:
    """Where ``edited`` still is what was ``served``, not-a-numbers included; of its shape."""
    return (edited == served) | (edited.isnan() & served.isnan())


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: Tensor, computed: Tensor) -> Tensor:
        # A new tensor, for the model may go on to change it in place.
        return copied(numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *gradients


def straight_through(numbers: Tensor, computed: Tensor) -> Tensor:
    """``numbers`` with the gradient of ``computed``, to which they are equal but for rounding.

    A copy, where there is a gradient; of the shape of both.
    """
    if not computed.requires_grad:
        return numbers
    return _StraightThrough.apply(numbers.detach(), computed)


def scaled(site: Site, factor: Callable[[Any], float]) -> Mapped:
    """A value that its block multiplies, outside any module, before it adds it.

    Args:
        site: Where it is before.
        factor: From the host to the multiplier.
    """
    return Mapped(
        site,
        to=lambda host, tensor: tensor * factor(host),
        back=lambda host, value, held: value / factor(host),
    )


def of_block(attribute: str) -> Callable[[Envoy], float]:
    """The number that the block around a host keeps as ``attribute``."""
    return lambda host: float(getattr(module_at(host, "..")._module, attribute))


def changed_later(site: Site) -> Mapped:
    """A value that the forward goes on to change in place, so that a copy is served."""
    return Mapped(
        site,
        to=lambda host, tensor: copied(tensor),
        back=lambda host, value, held: value,
        exact=True,
    )


@dataclass(frozen=True)
class Computed(Site):
    """A value computed beside the forward from what arrives at ``site``; read only.

    Attributes:
        site: What it is computed from is at this site's location.
        compute: From the host and what arrived there to the value.
        read_only: Why it is not written.
        no_gradient: Why the model computes nothing from it, where gradients are kept.
    """

    site: Site
    compute: Callable[[Any, Any], Tensor]
    read_only: str
    no_gradient: str | None = None

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.compute(host, raw), is_new_tensor=True)


def next_token_probabilities(logits: Tensor) -> Tensor:
    """``[batch, vocab]`` in float32, of ``[batch, seq, vocab]`` or ``[batch, vocab]``."""
    last = logits[:, -1] if logits.ndim == 3 else logits
    return last.softmax(-1, dtype=torch.float32)


def softmax_of_last(logits: Site) -> Computed:
    """The softmax of the last position of what is at ``logits``."""
    return Computed(
        logits,
        lambda host, raw: next_token_probabilities(logits.read(host, raw).tensor),
        read_only="it is computed from the logits; edit those instead",
        no_gradient="it is computed from the logits, and its loss is not made of it",
    )


def zeros(of: str = ".") -> Computed:
    """Zeros, for the earlier part of a value in blocks that lack it.

    Args:
        of: The module whose first argument they are like, read where that is entered.
    """
    return Computed(
        FirstArgument(of),
        lambda host, raw: torch.zeros_like(first_input(*raw)),
        read_only="the block lacks what would be written",
    )


@dataclass(frozen=True)
class ReadOnly(Site):
    """A value that is read where it is, and cannot be written there.

    Attributes:
        site: Where it is.
        read_only: Why not, in words.
    """

    site: Site
    read_only: str

    @property
    def no_gradient(self) -> str:  # type: ignore[override]
        return self.read_only

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return self.site.read(host, raw)
