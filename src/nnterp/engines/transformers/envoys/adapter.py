"""Hands over transformers' values to a block.

Without gradients, a block is given the tensor that the model carries on with, or its invoke's part
of it, so an in-place edit is an edit of the model. Where gradients are kept, it is given a copy,
which takes the tensor's place in the model when the block moves on. The gradient of the value is
then that of the copy, whatever the value was computed from and whatever else is in the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from greenlet import getcurrent
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import Event, Mediator, Pending
from torch import Tensor

from nnterp.engines.transformers.batches.invokes import Invokes, Look, invoke_part, with_part
from nnterp.lifetime import Reading, copied
from nnterp.sites.base import Site
from nnterp.tracing.engine_adapter import EngineAdapter
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.swap import Swap
from nnterp.vocabulary.values import Engine, Value


class LiveTensors(EngineAdapter):
    """`LiveTensors` is the engine adapter of transformers."""

    engine: Engine = "transformers"
    live = True

    def reading(self, site: Site, value: Value, host: StandardEnvoy, content: Any) -> Reading:
        tensor, is_new_tensor = site.read(host, content)
        own = invoke_part(tensor, value)
        part = tensor if own is None else tensor[own]
        kept = torch.is_grad_enabled() and part.is_floating_point()
        if kept and site.no_gradient is None:
            return Reading(copied(part), is_new_tensor=True)
        return Reading(part, is_new_tensor)

    def serve(self, site: Site, value: Value, host: StandardEnvoy, arrived: Any) -> Tensor:
        return self.reading(site, value, host, arrived).tensor

    def own_part(self, arrived: Any) -> Any:
        return arrived

    def of_whole_batch(self, location: str, occurrence: int) -> Any:
        batcher = Mediator.current(location).interleaver.batcher
        if not isinstance(batcher, Invokes) or not batcher.batching:
            return None
        look = Look()
        getcurrent().parent.switch(Pending(Event.SWAP, location, occurrence, look))
        return look.found

    def copy_assigned(self, tensor: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        # A copy, because the caller may keep the tensor, and the block or the model may edit the
        # value in place.
        return copied(tensor)

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        own = invoke_part(like, value)
        if own is not None:
            return with_part(like, own, view)
        # A copy, because the model may change in place what it goes on with, and the block keeps
        # its view.
        return copied(view) if torch.is_grad_enabled() else view

    def carries_gradient(self, site: Site, view: Tensor) -> bool:
        return view.requires_grad and torch.is_grad_enabled() and site.no_gradient is None

    def is_current(self, site: Site, value: Value, host: Envoy, raw: Any, view: Tensor) -> bool:
        tensor = site.read(host, raw).tensor
        own = invoke_part(tensor, value)
        return torch.equal(tensor if own is None else tensor[own], view)

    def edit(self, before: Any, after: Any) -> Any:
        batcher = Mediator.current("batch").interleaver.batcher
        return Swap(before, after) if isinstance(batcher, Invokes) else after

    def unavailable_now(self, value: Value) -> str | None:
        return None
