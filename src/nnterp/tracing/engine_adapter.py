"""How one engine hands values over to a block, and takes edits back.

* transformers hands out the live tensor, so an in-place edit is already in the model, unless
  gradients are kept: then it hands out a copy that the model goes on with;
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
    """How one engine hands values over.

    Attributes:
        engine: The engine.
        live: Whether an in-place edit of what `serve` hands out is an edit of the model.
    """

    engine: Engine
    live: bool

    def serve(self, site: Site, value: Value, host: Envoy, arrived: Any) -> Tensor:
        """What the block is given for ``value``, which ``site`` finds in what ``arrived``."""

    def own_part(self, arrived: Any) -> Any:
        """The running block's own part of what ``arrived`` at a location."""

    def copy_assigned(self, tensor: Tensor, value: Value, host: Envoy) -> Tensor:
        """The copy to keep of a ``tensor`` that the block assigns to ``value``."""

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        """``view``, in the layout of ``value``, back in the shape of ``like`` it was taken from."""

    def edit(self, before: Any, after: Any) -> Any:
        """What to swap in for a location whose content goes from ``before`` to ``after``."""

    def unavailable_now(self, value: Value) -> str | None:
        """Why the step the running block is at does not serve ``value``, or None."""

    def reading(self, site: Site, value: Value, host: Envoy, content: Any) -> Reading:
        """What `serve` gives, and whether an edit of it has to be put back into ``content``."""
        return Reading(self.serve(site, value, host, content), is_new_tensor=True)

    def of_whole_batch(self, location: str, occurrence: int) -> Any:
        """What is at ``location`` for the whole batch; None where that is the block's own part."""
        return None

    def carries_gradient(self, site: Site, view: Tensor) -> bool:
        """Whether the model has to go on with ``view`` though it is unedited, for gradients."""
        return False

    def is_current(self, site: Site, value: Value, host: Envoy, raw: Any, view: Tensor) -> bool:
        """Whether ``view`` is what ``raw`` holds."""
        return True
