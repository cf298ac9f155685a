"""Defines how one engine hands values over to a block, and takes edits back.

* transformers hands out the live tensor, so an in-place edit is in the model already, unless
  gradients are kept: then it hands out a copy, with which the model goes on;
* vLLM's buffers are overwritten by later kernels and hold other requests' rows, so there every
  value is a private copy, and an edited copy is written back.
"""

from __future__ import annotations

from typing import Any, Protocol

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.lifetime import Reading
from nnterp.sites.base import Site
from nnterp.vocabulary.values import Engine, Value


class EngineAdapter(Protocol):
    """An `EngineAdapter` says how one engine hands values over.

    Attributes:
        engine: The engine.
        live: Whether an in-place edit of what `serve` hands out is an edit of the model.
    """

    engine: Engine
    live: bool

    def serve(self, site: Site, value: Value, host: Envoy, arrived: Any) -> Tensor:
        """Return the tensor a block is given for ``value``.

        Args:
            site: Where the value is in ``arrived``.
            value: The vocabulary row, whose layout the tensor has.
            host: The envoy that hosts the value.
            arrived: What arrived at the site's location.
        """

    def own_part(self, arrived: Any) -> Any:
        """Return the running block's own part of what ``arrived`` at a location."""

    def copy_assigned(self, tensor: Tensor, value: Value, host: Envoy) -> Tensor:
        """Return the copy to keep of a ``tensor`` that the block assigns to ``value``."""

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        """Return ``view``, in the layout of ``value``, in the shape of its origin, ``like``."""

    def edit(self, before: Any, after: Any) -> Any:
        """Return what to swap in at a location whose content goes from ``before`` to ``after``."""

    def edits_together(
        self, site: Site, value: Value, host: Envoy, arrived: Any, view: Tensor
    ) -> bool:
        """Take an edited ``view`` to be put into the model together with other blocks' edits.

        Returns:
            Whether it was taken. If not, it has to be put in by itself, as by `edit`.
        """
        return False

    def unavailable_now(self, value: Value) -> str | None:
        """Return why the step the running block is at does not serve ``value``, or None."""

    def reading(self, site: Site, value: Value, host: Envoy, content: Any) -> Reading:
        """Return what `serve` gives, and whether an edit of it must be put into ``content``."""
        return Reading(self.serve(site, value, host, content), is_new_tensor=True)

    def of_whole_batch(self, location: str, occurrence: int) -> Any:
        """Return what is at ``location`` for the whole batch; None if the block's part is that."""
        return None

    def carries_gradient(self, site: Site, view: Tensor) -> bool:
        """Return whether the model must go on with ``view``, though unedited, for gradients."""
        return False

    def is_current(self, site: Site, value: Value, host: Envoy, raw: Any, view: Tensor) -> bool:
        """Return whether ``view`` holds the numbers that ``raw`` holds for ``value`` now."""
        return True
