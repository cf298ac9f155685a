"""Values that are at one site or another, by what their host is or by what arrives."""

from __future__ import annotations

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
    """A value that is elsewhere in blocks that lack a module.

    Attributes:
        has: The module, by its path from the host.
        site: Where the value is where there is one.
        otherwise: Where it is where there is none.
    """

    has: str
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        return self.site if find_module(host, self.has) is not None else self.otherwise


@dataclass(frozen=True)
class IfTaken(ByHost):
    """A value that is elsewhere in modules whose ``forward`` takes an argument.

    Attributes:
        argument: The argument.
        site: Where the value is where it is taken.
        otherwise: Where it is where it is not.
    """

    argument: str
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        taken = self.argument in parameters(type(host._module).forward)
        return self.site if taken else self.otherwise


@dataclass(frozen=True)
class ByConfig(ByHost):
    """A value that is elsewhere where the config sets ``field``.

    Attributes:
        field: The config's field.
        site: Where the value is where it is set.
        otherwise: Where it is where it is not.
    """

    field: str
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        return self.site if getattr(host.root._module.config, self.field) else self.otherwise


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
