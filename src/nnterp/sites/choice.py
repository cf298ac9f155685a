"""Values that are at one site or another, by what their host is or by what arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.lifetime import Reading
from nnterp.sites.base import Site, find_module, parameters
from nnterp.sites.mapped import Mapped


class ByHost(Site):
    """A value that is at one site or another, by what its host is."""

    def here(self, host: Any) -> Site:
        """Where the value is in ``host``."""
        raise NotImplementedError

    def given(self, host: Any, raw: Any) -> Site:
        """Where the value is in what arrived; the same, unless that tells more."""
        return self.here(host)

    def location(self, host: Envoy) -> str:
        return self.here(host).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return self.given(host, raw).read(host, raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self.given(host, raw).write(host, raw, tensor)


@dataclass(frozen=True)
class Either(ByHost):
    """A value that is at one of two sites.

    Attributes:
        when: Whether it is at the first, asked of the host: `has`, `takes`, `configured`, or a
            function of the family's own.
        site: The first.
        otherwise: The second.
    """

    when: Callable[[Any], bool]
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        return self.site if self.when(host) else self.otherwise


def has(path: str) -> Callable[[Any], bool]:
    """Whether there is a module at ``path`` from the host."""
    return lambda host: find_module(host, path) is not None


def takes(argument: str) -> Callable[[Any], bool]:
    """Whether the host's ``forward`` takes ``argument``."""
    return lambda host: argument in parameters(type(host._module).forward)


def configured(field: str) -> Callable[[Any], bool]:
    """Whether the model's config sets ``field``."""
    return lambda host: bool(getattr(host.root._module.config, field))


@dataclass(frozen=True)
class FromFamily(ByHost):
    """A site of the model as a whole that its family may place elsewhere.

    Blocks and their parts have a class per family to say so; the model has one class,
    so there the family module says it.

    Attributes:
        attribute: The name that the family module says it under.
        default: Where the value is in other families.
    """

    attribute: str
    default: Site

    def here(self, host: Any) -> Site:
        return getattr(host.family, self.attribute, self.default)


@dataclass(frozen=True)
class Biased(ByHost):
    """A value whose module returns its bias beside it, for the block to add.

    Attributes:
        site: Where it is without.
        index: Which element of what is returned the bias is, which may be None.
    """

    site: Site
    index: int

    def here(self, host: Any) -> Site:
        return self.site

    def given(self, host: Any, raw: Any) -> Site:
        bias = raw[self.index]
        if bias is None:
            return self.site
        return Mapped(
            self.site,
            to=lambda host, tensor: tensor + bias,
            back=lambda host, value, held: value - bias,
        )
