"""Serves nnsight's own handles on a module's input and output as private copies."""

from __future__ import annotations

from typing import Any

from nnsight.intervention.batching import BatchGroup
from nnsight.util import apply
from torch import Tensor

from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.lifetime import copied, outside_inference_mode
from nnterp.tracing.swap import Swap


class PrivateHandle:
    """Holds the copies of a request's rows that nnsight's own handle on a location is given.

    Like an `OpenValues`, it stands where nnsight keeps a read's write-back.

    Args:
        location: The location.
        occurrence: How often the forward has reached it before.
        batcher: What cuts the rows out.
        content: What the whole step holds there.
        group: The request's rows, ``[start, length]``.

    Attributes:
        private: ``content`` with a copy of the request's rows in place of each tensor.
    """

    view = None
    key = None

    def __init__(
        self,
        location: str,
        occurrence: int | None,
        batcher: RowBatcher,
        content: Any,
        group: BatchGroup,
    ) -> None:
        self.location = location
        self.occurrence = occurrence
        self._versions: list[tuple[Tensor, int]] = []

        def private(tensor: Tensor) -> Tensor:
            if group is None or batcher.token_axis(tensor) is None:
                return tensor
            with outside_inference_mode():
                own = copied(batcher.narrow(tensor, group))
            self._versions.append((own, own._version))
            return own

        self.private = apply(content, private, Tensor)

    def edited(self) -> bool:
        """Return whether the block has changed any of the copies in place."""
        return any(version != own._version for own, version in self._versions)

    def fn(self) -> Swap:
        """Return the edit to swap in, to have the changes at the location."""
        changed = {id(own) for own, version in self._versions if version != own._version}
        after = apply(self.private, lambda own: own[...] if id(own) in changed else own, Tensor)
        return Swap(self.private, after)
