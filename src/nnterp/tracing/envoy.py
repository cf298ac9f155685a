"""The envoy that hosts standard values: nnsight's, with an engine's way of handing them over."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

from nnsight.intervention.envoy import Envoy

from nnterp.errors import did_you_mean
from nnterp.sites.base import Site
from nnterp.tracing.engine_adapter import EngineAdapter
from nnterp.vocabulary.values import VALUES


class StandardEnvoy(Envoy):
    """An envoy that hosts standard values.

    Attributes:
        engine_adapter: How this envoy's engine hands values over.
        between: The values that lie between the two parts of another, by their names: the
            other's. Reading one of them keeps the earlier part for when the other is asked for.
    """

    engine_adapter: ClassVar[EngineAdapter]
    between: ClassVar[Mapping[str, str]] = {}

    @property
    def runs(self) -> int:
        """How often a forward runs this module; its values are the last run's."""
        return 1

    @cached_property
    def whereabouts(self) -> dict[Any, Any]:
        """Where each value of this module is, as it was found when it was first asked for."""
        return {}

    @classmethod
    def placed(cls, **sites: Site) -> type[Self]:
        """This envoy with some of its values at other sites: how a family says where it differs.

        Args:
            **sites: The site of each, by the value's name.
        """
        moved = {name: getattr(cls, name).at(site) for name, site in sites.items()}
        return type(cls.__name__, (cls,), {**moved, "__doc__": cls.__doc__})

    def unavailable(self, name: str) -> str | None:
        """Why this module never serves the value ``name``, or None where it does."""
        return getattr(type(self), name).site.missing(self)

    def __setattr__(self, name: str, value: Any) -> None:
        unknown = name not in self.__dict__ and not hasattr(type(self), name)
        if unknown and self.__dict__.get("interleaver") and self.interleaver.interleaving:
            hint = did_you_mean(name, VALUES)
            if hint:
                raise AttributeError(f"{self.path} has no value {name!r} to set{hint}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            # A private name is some library's probe, and frequent.
            hint = "" if name.startswith("_") else did_you_mean(name, VALUES)
            if not hint:
                raise
            raise AttributeError(f"{error}{hint}") from None
