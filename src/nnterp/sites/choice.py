"""Chooses where a value is by what its host is, or by what arrives there."""

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
    """`ByHost` is the base of sites that choose between other sites by what the host is."""

    def here(self, host: Any) -> Site:
        """Return the site of the value in ``host``."""
        raise NotImplementedError

    def given(self, host: Any, raw: Any) -> Site:
        """Return the site of the value in ``raw``, what arrived; `here`, unless that tells more."""
        return self.here(host)

    def location(self, host: Envoy) -> str:
        return self.here(host).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        return self.given(host, raw).read(host, raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self.given(host, raw).write(host, raw, tensor)


@dataclass(frozen=True)
class Either(ByHost):
    """An `Either` is a value that is at one of two sites.

    Attributes:
        when: A function that tells, from the host, whether the value is at the first: `has`,
            `takes`, `configured`, or one of the family's own.
        site: The first site.
        otherwise: The second site.
    """

    when: Callable[[Any], bool]
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        return self.site if self.when(host) else self.otherwise


def has(path: str) -> Callable[[Any], bool]:
    """Return a function that tells whether there is a module at ``path`` from the host."""
    return lambda host: find_module(host, path) is not None


def takes(argument: str) -> Callable[[Any], bool]:
    """Return a function that tells whether the host's ``forward`` takes ``argument``."""
    return lambda host: argument in parameters(type(host._module).forward)


def configured(field: str) -> Callable[[Any], bool]:
    """Return a function that tells whether the model's config sets ``field``."""
    return lambda host: bool(getattr(host.root._module.config, field))


@dataclass(frozen=True)
class FromFamily(ByHost):
    """A `FromFamily` is a value of the model as a whole that its family may place elsewhere.

    Blocks and their parts have an envoy class per family, which places their values. The model has
    one class for all families, so the family module names the site instead.

    Attributes:
        attribute: The name under which the family module defines the site.
        default: Where the value is in other families.
    """

    attribute: str
    default: Site

    def here(self, host: Any) -> Site:
        return getattr(host.family, self.attribute, self.default)


@dataclass(frozen=True)
class Biased(ByHost):
    """A `Biased` is a value whose module returns its bias separately, for the block to add.

    Attributes:
        site: Where the value without its bias is.
        index: Which element of what is returned is the bias, which may be None.
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
