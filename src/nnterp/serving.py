"""How values are handed over, and the envoys that host them.

How a block is given a tensor is the engine's own affair, its `Serving`:

* transformers hands out the live tensor, so an in-place edit is already in the model,
  unless gradients are kept: then it hands out a copy that the model goes on with;
* vLLM's buffers are overwritten by later kernels and hold other requests' rows, so
  there every value is a *private copy*, and an edited copy is written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from greenlet import getcurrent
from nnsight.intervention.envoy import Envoy
from torch import Tensor

from .errors import did_you_mean
from .sites import Reading, Site
from .values import VALUES, Engine, Value

if TYPE_CHECKING:
    from .visit import Visit


class Serving(Protocol):
    """How one engine hands values over."""

    engine: Engine
    #: Whether an in-place edit of what `serve` hands out is an edit of the model.
    live: bool

    def serve(self, site: Site, value: Value, host: Envoy, arrived: Any) -> Tensor:
        """What the block is given for ``value``, which ``site`` finds in what ``arrived``."""

    def look(self, site: Site, value: Value, host: StandardEnvoy, content: Any) -> Reading:
        """What `serve` gives, ``fresh`` where an edit of it has to be put back into ``content``."""
        return Reading(self.serve(site, value, host, content), fresh=True)

    def undivided(self, visit: Visit) -> Any:
        """What is at the location of ``visit``, whoever it belongs to."""
        return self.own(visit.arrived)

    def own(self, arrived: Any) -> Any:
        """The running block's own part of what ``arrived`` at a location."""

    def adopt(self, tensor: Tensor, value: Value, host: Envoy) -> Tensor:
        """What to keep for a ``tensor`` the block assigns to ``value``."""

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        """``view``, in the layout of ``value``, back in the shape of ``like`` it was taken from."""

    def linked(self, site: Site, view: Tensor) -> bool:
        """Whether the model has to go on with ``view`` though it is unedited, for gradients."""
        return False

    def shows(self, site: Site, value: Value, host: Envoy, raw: Any, view: Tensor) -> bool:
        """Whether ``view`` is what ``raw`` holds."""
        return True

    def edit(self, before: Any, after: Any) -> Any:
        """What to swap in for a location whose content goes from ``before`` to ``after``."""

    def unavailable_now(self, value: Value) -> str | None:
        """Why the step the running block is at does not serve ``value``, or None."""


def in_block() -> bool:
    """Whether the code running now is a trace's block."""
    return getattr(getcurrent(), "mediator", None) is not None


def require_outside_blocks(what: str) -> None:
    """Refuse what runs prompts of its own in a block, whose model is in the middle of a run.

    Args:
        what: What was called.

    Raises:
        ValueError: This is a block.
    """
    if in_block():
        raise ValueError(
            f"{what} runs the model, which is running already for the trace this is in: save "
            "what you need of it, close the trace, and go on below"
        )


class StandardEnvoy(Envoy):
    """An envoy that hosts standard values.

    Attributes:
        serving: How this envoy's engine hands values over.
    """

    serving: ClassVar[Serving]

    #: The values that lie between the two parts of another, by their names: the other's.
    #: Reading one of them keeps the earlier part for when the other is asked for.
    between: ClassVar[Mapping[str, str]] = {}

    @property
    def runs(self) -> int:
        """How often a forward runs this module; its values are the last run's."""
        return 1

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
        return None

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
