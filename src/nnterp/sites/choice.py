"""Chooses where a value is by what its host is, or by what arrives there."""

from __future__ import annotations

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
    """An `Either` is a value that is at another site in blocks that lack a module.

    Attributes:
        has: The module, by its path from the host.
        site: Where the value is in a block that has the module.
        otherwise: Where it is in a block that does not.
    """

    has: str
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        return self.site if find_module(host, self.has) is not None else self.otherwise


@dataclass(frozen=True)
class IfTaken(ByHost):
    """An `IfTaken` is a value that is elsewhere in modules whose ``forward`` takes an argument.

    Attributes:
        argument: The name of the argument.
        site: Where the value is if the argument is taken.
        otherwise: Where it is if not.
    """

    argument: str
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        taken = self.argument in parameters(type(host._module).forward)
        return self.site if taken else self.otherwise


@dataclass(frozen=True)
class ByConfig(ByHost):
    """A `ByConfig` is a value that is at another site where the config sets ``field``.

    Attributes:
        field: The config's field.
        site: Where the value is if the field is set to something true.
        otherwise: Where it is if not.
    """

    field: str
    site: Site
    otherwise: Site

    def here(self, host: Any) -> Site:
        return self.site if getattr(host.root._module.config, self.field) else self.otherwise


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
