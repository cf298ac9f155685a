"""Computes values as functions of what is at another site.

A `Mapped` value has a function from the tensor at the site to the value and one back, both stated
by a family. A `Computed` value has the first alone, and is read-only.
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

#: Computes the value from the host and the tensor at the site.
To = Callable[[Any, Tensor], Tensor]

#: Computes the tensor to put at the site from the host, the value and the tensor that is there.
Back = Callable[[Any, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Mapped(Site):
    """A `Mapped` is a value that is an invertible function of what is at ``site``.

    Attributes:
        site: Where the tensor that it is computed from is.
        to: Computes the value from that tensor: ``to(host, tensor)``.
        back: Computes the tensor that must be at ``site`` for the value to be ``value``:
            ``back(host, value, held)``, where ``held`` is the tensor there now.
        exact: Whether ``to`` followed by ``back`` is exactly the identity, as for a rearrangement.
            Where the functions compute in floating point it is not: a write then changes only the
            numbers that were edited and leaves the others as they were, to the bit.
        factor: Computes, from the host, the number by which ``to`` multiplies; None where it does
            something else.
    """

    site: Site
    to: To
    back: Back
    exact: bool = False
    factor: Callable[[Any], float] | None = None

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
            # Gradients flow through the value at numbers that were not edited, too.
            computed = straight_through(torch.where(kept, held, computed), computed)
        return self.site.write(host, raw, computed)


def untouched(edited: Tensor, served: Tensor) -> Tensor:
    """Return a mask of where ``edited`` equals what was ``served``; two NaNs count as equal.

    All three tensors have the same shape.
    """
    return (edited == served) | (edited.isnan() & served.isnan())


class _StraightThrough(torch.autograd.Function):
    """Returns one tensor in the forward pass, and passes the gradient on to another."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, computed: Tensor) -> Tensor:
        # A new tensor, because the model may change it in place afterwards.
        return copied(numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *gradients


def straight_through(numbers: Tensor, computed: Tensor) -> Tensor:
    """Return ``numbers`` with the gradient of ``computed``, to which they are equal up to rounding.

    All three tensors have the same shape. The result is a copy where there is a gradient.
    """
    if not computed.requires_grad:
        return numbers
    return _StraightThrough.apply(numbers.detach(), computed)


def scaled(site: Site, factor: Callable[[Any], float]) -> Mapped:
    """Return the site of a value that its block multiplies, outside any module, before adding it.

    Args:
        site: Where the value is before the multiplication.
        factor: Computes the multiplier from the host.
    """
    return Mapped(
        site,
        to=lambda host, tensor: tensor * factor(host),
        back=lambda host, value, held: value / factor(host),
        factor=factor,
    )


def of_block(attribute: str) -> Callable[[Envoy], float]:
    """Return a function that reads the number ``attribute`` of the block around a host."""
    return lambda host: float(getattr(module_at(host, "..")._module, attribute))


def changed_later(site: Site) -> Mapped:
    """Return the site of a value that the forward later changes in place, so a copy is served."""
    return Mapped(
        site,
        to=lambda host, tensor: copied(tensor),
        back=lambda host, value, held: value,
        exact=True,
        factor=lambda host: 1.0,
    )


@dataclass(frozen=True)
class Computed(Site):
    """A `Computed` is a read-only value, computed beside the forward from what arrives at ``site``.

    Attributes:
        site: What the value is computed from arrives at this site's location.
        compute: Computes the value from the host and what arrived there.
        read_only: Why it cannot be written.
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
    """Return the softmax of the last position's logits.

    Args:
        logits: ``[batch, seq, vocab]`` or ``[batch, vocab]``.

    Returns:
        ``[batch, vocab]`` in float32.
    """
    last = logits[:, -1] if logits.ndim == 3 else logits
    return last.softmax(-1, dtype=torch.float32)


def softmax_of_last(logits: Site) -> Computed:
    """Return a site of the softmax of the last position of the logits at ``logits``."""
    return Computed(
        logits,
        lambda host, raw: next_token_probabilities(logits.read(host, raw).tensor),
        read_only="it is computed from the logits; edit those instead",
        no_gradient="it is computed from the logits, and its loss is not made of it",
    )


def zeros(of: str = ".") -> Computed:
    """Return a site of zeros, as the earlier part of a value in blocks that lack that part.

    Args:
        of: The module whose first argument they have the shape of; they are read where that module
            is entered.
    """
    return Computed(
        FirstArgument(of),
        lambda host, raw: torch.zeros_like(first_input(*raw)),
        read_only="the block lacks what would be written",
    )


@dataclass(frozen=True)
class ReadOnly(Site):
    """A `ReadOnly` is a value that is read at ``site`` and cannot be written there.

    Attributes:
        site: Where it is.
        read_only: Why it cannot be written, for an error message.
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
