"""Says where values are in what modules pass, in a form that a compiled forward can follow.

A site reads a value with the help of the tree of envoys, which no compiler can trace. Where a site
does no more than pick a tensor out of what a module takes or returns, or adds two of them up, it
has a *port*: the module, and a few constants that say which tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from nnterp.engines.vllm.envoys.adapter import HEAD_COUNTS
from nnterp.errors import Unavailable
from nnterp.sites.base import Site, module_at, parameters
from nnterp.sites.choice import Biased, ByHost
from nnterp.sites.fused import FusedInput, FusedOutput
from nnterp.sites.mapped import Mapped, ReadOnly
from nnterp.sites.primitive import Argument, FirstArgument, Output
from nnterp.vocabulary.names import Place


class Held(Protocol):
    """A `Held` picks a value out of what a module passes, and puts another in its place.

    What a module passes is what it returns, or the ``(args, kwargs)`` it is called with.
    """

    def take(self, passed: Any) -> Tensor:
        """Return the value."""

    def put(self, passed: Any, value: Tensor, changed: Tensor) -> Any:
        """Return ``passed`` with ``value`` where ``changed`` is true, and as it was elsewhere.

        Args:
            passed: What the module passes.
            value: What becomes of the value, in its shape.
            changed: Which of its numbers change, in its shape.
        """


@dataclass(frozen=True)
class Returned(Held):
    """A `Returned` is what a module returns, or an element of the tuple that it returns."""

    index: int

    def take(self, passed: Any) -> Tensor:
        return passed if isinstance(passed, Tensor) else passed[self.index]

    def put(self, passed: Any, value: Tensor, changed: Tensor) -> Any:
        new = torch.where(changed, value, self.take(passed))
        if isinstance(passed, Tensor):
            return new
        return (*passed[: self.index], new, *passed[self.index + 1 :])


@dataclass(frozen=True)
class Passed(Held):
    """A `Passed` is an argument that a module is called with, by position or by name."""

    position: int
    name: str

    def get(self, passed: Any) -> Any:
        """Return the argument; None where it was not passed."""
        args, kwargs = passed
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)

    def take(self, passed: Any) -> Tensor:
        return self.get(passed)

    def put(self, passed: Any, value: Tensor, changed: Tensor) -> Any:
        return self.replaced(passed, torch.where(changed, value, self.take(passed)))

    def replaced(self, passed: Any, tensor: Tensor) -> Any:
        """Return ``passed`` with ``tensor`` for the argument."""
        args, kwargs = passed
        if self.position < len(args):
            return (*args[: self.position], tensor, *args[self.position + 1 :]), kwargs
        return args, {**kwargs, self.name: tensor}


@dataclass(frozen=True)
class EnteringSum(Held):
    """An `EnteringSum` is a stream that enters a block as two addends, the second of them if any.

    What changes is put into the second addend, and the first is zero there.
    """

    hidden: Passed
    residual: Passed

    def take(self, passed: Any) -> Tensor:
        residual = self.residual.get(passed)
        hidden = self.hidden.take(passed)
        return hidden if residual is None else hidden + residual

    def put(self, passed: Any, value: Tensor, changed: Tensor) -> Any:
        residual = self.residual.get(passed)
        if residual is None:
            return self.hidden.put(passed, value, changed)
        hidden = self.hidden.take(passed)
        first = self.hidden.replaced(passed, torch.where(changed, 0.0, hidden).to(hidden.dtype))
        return self.residual.replaced(first, torch.where(changed, value, residual))


@dataclass(frozen=True)
class LeavingSum(Held):
    """A `LeavingSum` is a stream that a block returns as two addends."""

    def take(self, passed: Any) -> Tensor:
        hidden, residual = passed
        return hidden + residual

    def put(self, passed: Any, value: Tensor, changed: Tensor) -> Any:
        hidden, residual = passed
        first = torch.where(changed, 0.0, hidden).to(hidden.dtype)
        return first, torch.where(changed, value, residual)


@dataclass(frozen=True)
class Times(Held):
    """A `Times` is a value that its block makes of another by multiplying it by a number."""

    held: Held
    factor: float

    def take(self, passed: Any) -> Tensor:
        return self.held.take(passed) * self.factor

    def put(self, passed: Any, value: Tensor, changed: Tensor) -> Any:
        return self.held.put(passed, value / self.factor, changed)


class Port(NamedTuple):
    """A `Port` is where a value is in a forward.

    Attributes:
        module: The module that passes it.
        entering: Whether it is in what the module is called with, not in what it returns.
        held: Picks it out there.
        row: The shape of a token's row, ``(width,)`` or ``(heads, width)``, which a module may pass
            flattened.
    """

    module: nn.Module
    entering: bool
    held: Held
    row: tuple[int, ...]


def port(model: Any, place: Place) -> Port:
    """Return the port of the value at ``place``.

    Args:
        model: The tree, in either process.
        place: The value, and the block.

    Raises:
        Unavailable: The value has none.
    """
    host = model.host_of(place.value, place.layer or 0)
    site: Site = getattr(type(host), place.value.name).site
    found = _held(host, site)
    row = None if found is None else _row(model, host, place)
    if found is None or row is None:
        raise Unavailable(
            f"{place} cannot be part of a compiled forward, because it is computed beside it; load "
            "without edits= and reads= to have it"
        )
    return Port(*found, row)


def _row(model: Any, host: Any, place: Place) -> tuple[int, ...] | None:
    """Return the shape of a token's row of the value at ``place``, or None where it has none."""
    axes = place.value.axes
    if axes == ("batch", "seq", "hidden"):
        return (model.hidden_size,)
    heads = next((getattr(host, count) for axis, count in HEAD_COUNTS.items() if axis in axes), 0)
    width = axes[-1]
    return (heads, getattr(host, width)) if heads and width in ("head_dim", "qk_head_dim") else None


def _held(host: Any, site: Site) -> tuple[nn.Module, bool, Held] | None:
    """Return the module that passes the value at ``site``, whether entering, and what picks it."""
    while isinstance(site, ByHost) and not isinstance(site, Biased):
        site = site.here(host)
    if isinstance(site, ReadOnly):
        return _held(host, site.site)
    if isinstance(site, Mapped):
        inner = _held(host, site.site)
        if inner is None or site.factor is None:
            return None
        module, entering, held = inner
        factor = site.factor(host)
        return module, entering, held if factor == 1 else Times(held, factor)
    if isinstance(site, FusedOutput):
        return host._module, False, LeavingSum()
    if not isinstance(site, Output | Argument | FirstArgument | FusedInput):
        return None
    module = module_at(host, site.of)._module
    if isinstance(site, Output):
        return module, False, Returned(site.index)
    names = parameters(type(module).forward)
    if isinstance(site, FirstArgument):
        return module, True, Passed(0, names[0])
    if isinstance(site, Argument):
        return module, True, Passed(names.index(site.name), site.name)
    both = (Passed(names.index(name), name) for name in (site.hidden, site.residual))
    return module, True, EnteringSum(*both)
