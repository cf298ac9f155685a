"""Sites made of other sites.

A value may be what a module gives times a number, two modules' outputs added up, or at one
place in some blocks and at another in the rest. Each of these wraps the sites it is made of,
and is itself one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input
from torch import Tensor

from .sites import FirstArgument, Reading, Site, found, parameters, relative, untouched


class Mapped:
    """A value that is a function of what is at ``site``, number by number.

    There and back again is not the identity in floating point, so a write changes the
    numbers that were changed and leaves the others as they were.
    """

    site: Site

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        """The value, of the ``tensor`` at the site."""
        raise NotImplementedError

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        """What has to be at the site for the ``value`` to be this."""
        raise NotImplementedError

    @property
    def read_only(self) -> str | None:
        """Why it cannot be written, or None where it can."""
        return getattr(self.site, "read_only", None)

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.to(host, raw, self.site.read(host, raw).tensor), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        held = self.site.read(host, raw).tensor
        kept = untouched(tensor, self.to(host, raw, held))
        return self.site.write(host, raw, torch.where(kept, held, self.back(host, raw, tensor)))


@dataclass(frozen=True)
class Scaled(Mapped):
    """A value that its block multiplies, outside any module, before it adds it.

    Attributes:
        site: Where it is before.
        factor: From the host to the multiplier.
    """

    site: Site
    factor: Callable[[Envoy], float]

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        return tensor * self.factor(host)

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        return value / self.factor(host)


@dataclass(frozen=True)
class Biased(Mapped):
    """A value whose module returns its bias beside it, for the block to add.

    Attributes:
        site: Where it is without.
        index: Which element of what is returned the bias is, which may be None.
    """

    site: Site
    index: int

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        return tensor if raw[self.index] is None else tensor + raw[self.index]

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        return value if raw[self.index] is None else value - raw[self.index]

    def read(self, host: Envoy, raw: Any) -> Reading:
        return super().read(host, raw)._replace(fresh=raw[self.index] is not None)


@dataclass(frozen=True)
class ReadOnly:
    """A value that is read where it is, and cannot be written there.

    Attributes:
        site: Where it is.
        read_only: Why not, in words.
    """

    site: Site
    read_only: str

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.site.read(host, raw).tensor, fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError(self.read_only)


@dataclass(frozen=True)
class Copied:
    """A value that the forward goes on to change in place, so that it is a copy that is served."""

    site: Site

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.site.read(host, raw).tensor.clone(), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self.site.write(host, raw, tensor)


def of_block(attribute: str) -> Callable[[Envoy], float]:
    """The number that the block around a host keeps as ``attribute``."""
    return lambda host: float(getattr(relative(host, "..")._module, attribute))


@dataclass(frozen=True)
class Joined:
    """A value in two parts that the forward reaches one after the other.

    An edit of it goes to the later part, which makes up for the earlier.

    Attributes:
        earlier: The part reached first.
        last: The part reached last.
        sign: What the earlier part is multiplied by before it is added: -1 where ``last``
            already contains it and it is no part of the value.
    """

    earlier: Site
    last: Site
    sign: int = 1

    def location(self, host: Envoy) -> str:
        return self.last.location(host)

    def given(self, part: Tensor) -> Site:
        """The site of the whole value, once the earlier ``part`` is known."""
        return Completed(self.sign * part, self.last)

    def read(self, host: Envoy, raw: Any) -> Reading:
        raise RuntimeError(f"the earlier part of a value of {host.path} was not read")

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise RuntimeError(f"the earlier part of a value of {host.path} was not read")


@dataclass(frozen=True)
class Completed(Mapped):
    """A `Joined` value, of which the earlier ``part`` has been read.

    Attributes:
        part: The earlier part, times the sign it is added with.
        site: Where the later part is.
    """

    part: Tensor
    site: Site

    def to(self, host: Envoy, raw: Any, tensor: Tensor) -> Tensor:
        return tensor + self._given(tensor)

    def back(self, host: Envoy, raw: Any, value: Tensor) -> Tensor:
        return value - self._given(value)

    def _given(self, like: Tensor) -> Tensor:
        """The earlier part, in the shape of ``like`` or in one that broadcasts to it."""
        alike = self.part.numel() == like.numel()
        return self.part.reshape(like.shape) if alike else self.part


@dataclass(frozen=True)
class Shaped(Joined):
    """A value that arrives in other axes than it has, which the earlier site still shows."""

    def given(self, part: Tensor) -> Site:
        return InShape(part.shape, self.last)


@dataclass(frozen=True)
class InShape:
    """A value at ``site``, in the ``shape`` it should have."""

    shape: torch.Size
    site: Site

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        tensor = self.site.read(host, raw).tensor
        # As fresh, so that a write after a read still knows the shape.
        return Reading(tensor.reshape(self.shape), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        like = self.site.read(host, raw).tensor
        return self.site.write(host, raw, tensor.reshape(like.shape))


def locations(site: Site, host: Envoy) -> tuple[str, ...]:
    """Every location a value is read at, in the order the forward reaches them."""
    earlier = locations(site.earlier, host) if isinstance(site, Joined) else ()
    return (*earlier, site.location(host))


class Elsewhere:
    """A value that is at one site or another, by what its host is."""

    def here(self, host: Envoy) -> Site:
        """Where the value is in ``host``."""
        raise NotImplementedError

    def location(self, host: Envoy) -> str:
        return self.here(host).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return self.here(host).read(host, raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self.here(host).write(host, raw, tensor)


@dataclass(frozen=True)
class Either(Elsewhere):
    """A value that is elsewhere in blocks that lack a module.

    Attributes:
        has: The module, from the host.
        site: Where the value is where there is one.
        otherwise: Where it is where there is none.
    """

    has: str
    site: Site
    otherwise: Site

    def here(self, host: Envoy) -> Site:
        return self.site if found(host, self.has) is not None else self.otherwise


@dataclass(frozen=True)
class IfTaken(Elsewhere):
    """A value that is elsewhere in modules whose ``forward`` takes an argument.

    Attributes:
        argument: The argument.
        site: Where the value is where it is taken.
        otherwise: Where it is where it is not.
    """

    argument: str
    site: Site
    otherwise: Site

    def here(self, host: Envoy) -> Site:
        taken = self.argument in parameters(type(host._module).forward)
        return self.site if taken else self.otherwise


@dataclass(frozen=True)
class Nothing:
    """Zeros, for the earlier part of a `Joined` value in blocks that lack it.

    Attributes:
        of: The module whose first argument they are like, where that is entered.
    """

    of: str = "."

    def location(self, host: Envoy) -> str:
        return FirstArgument(self.of).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(torch.zeros_like(first_input(*raw)), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError(f"{host.path} lacks what would be written")
