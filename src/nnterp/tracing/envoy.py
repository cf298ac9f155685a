"""Defines the envoy that hosts standard values: nnsight's envoy with an engine adapter."""

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
    """A `StandardEnvoy` is an envoy that hosts standard values.

    Attributes:
        engine_adapter: How this envoy's engine hands values over.
        between: For each value that lies between the two parts of another value, by name: that
            other value's name. Reading the former keeps the earlier part of the latter, in case it
            is asked for later.
    """

    engine_adapter: ClassVar[EngineAdapter]
    between: ClassVar[Mapping[str, str]] = {}

    @property
    def runs(self) -> int:
        """Return how often one forward runs this module; its values are those of the last run."""
        return 1

    @cached_property
    def whereabouts(self) -> dict[Any, Any]:
        """Return a cache of where each value of this module is, filled when one is first read."""
        return {}

    @classmethod
    def placed(cls, **sites: Site) -> type[Self]:
        """Return a subclass with some values at other sites; families say with it how they differ.

        Args:
            **sites: The site of each, by the value's name.
        """
        moved = {name: getattr(cls, name).at(site) for name, site in sites.items()}
        return type(cls.__name__, (cls,), {**moved, "__doc__": cls.__doc__})

    def unavailable(self, name: str) -> str | None:
        """Return why this module never serves the value ``name``, or None if it does."""
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
            # Libraries often probe for private names, so no suggestion is looked up for them.
            hint = "" if name.startswith("_") else did_you_mean(name, VALUES)
            if not hint:
                raise
            raise AttributeError(f"{error}{hint}") from None
