"""How transformers' values are handed over.

Without gradients a block is given the tensor the model carries on with, or the part of it
that is its invoke's: an edit in place is then one of the model. Where gradients are kept
it is given a copy, which the model goes on with in its place when the block moves on, so that
the gradient of the value is that of the copy, whatever the value was computed from and whatever
else is in the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from greenlet import getcurrent
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import Event, Mediator, Pending
from torch import Tensor

from ..serving import Serving, StandardEnvoy
from ..sites import Reading, Site, no_gradient
from ..values import Engine, Value
from ..visit import Visit
from .invokes import Edit, Invokes, Look, own_part, with_part


class LiveTensors(Serving):
    """transformers' way of handing values over."""

    engine: Engine = "transformers"
    live = True

    def look(self, site: Site, value: Value, host: StandardEnvoy, content: Any) -> Reading:
        tensor, fresh = site.read(host, content)
        own = own_part(tensor, value)
        part = tensor if own is None else tensor[own]
        kept = torch.is_grad_enabled() and part.is_floating_point()
        if kept and no_gradient(site) is None:
            return Reading(part.clone(), fresh=True)
        return Reading(part, fresh)

    def serve(self, site: Site, value: Value, host: StandardEnvoy, arrived: Any) -> Tensor:
        return self.look(site, value, host, arrived).tensor

    def own(self, arrived: Any) -> Any:
        return arrived

    def undivided(self, visit: Visit) -> Any:
        block = Mediator.current(visit.location)
        batcher = block.interleaver.batcher
        if not isinstance(batcher, Invokes) or not batcher.batching:
            return visit.content()
        look = Look()
        getcurrent().parent.switch(Pending(Event.SWAP, visit.location, visit.occurrence, look))
        return look.found

    def adopt(self, tensor: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        # The caller may keep the tensor, and the block or the model may edit what it becomes.
        return tensor.clone()

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        own = own_part(like, value)
        if own is not None:
            return with_part(like, own, view)
        # The model may change what it goes on with in place, and the block keeps its view.
        return view.clone() if torch.is_grad_enabled() else view

    def linked(self, site: Site, view: Tensor) -> bool:
        return view.requires_grad and torch.is_grad_enabled() and no_gradient(site) is None

    def shows(self, site: Site, value: Value, host: Envoy, raw: Any, view: Tensor) -> bool:
        tensor = site.read(host, raw).tensor
        own = own_part(tensor, value)
        return torch.equal(tensor if own is None else tensor[own], view)

    def edit(self, before: Any, after: Any) -> Any:
        batcher = Mediator.current("batch").interleaver.batcher
        return Edit(before, after) if isinstance(batcher, Invokes) else after

    def unavailable_now(self, value: Value) -> str | None:
        return None
