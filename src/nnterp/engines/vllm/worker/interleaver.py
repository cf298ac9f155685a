"""nnsight's interleaver over a step's rows: it runs blocks, and shows values to collectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
from nnsight.intervention.cache import Cache
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.vllm.interleaver import VLLMInterleaver
from nnsight.util import apply

from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.engines.vllm.worker.lora import LoraAdapters
from nnterp.engines.vllm.worker.thread_state import State, thread_state
from nnterp.lifetime import copied


class PrivateCache(Cache):
    """nnsight's ``tracer.cache()``, keeping copies: it would keep the engine's own buffers."""

    def _transform(self, value: Any) -> Any:
        return super()._transform(apply(value, copied, torch.Tensor))


class RowConsumer(Protocol):
    """What takes rows out of a step without waiting for them as a block does."""

    def arrive(self, location: str, content: Any) -> None:
        """Take some of what the step holds at ``location``."""


class RowInterleaver(VLLMInterleaver):
    """nnsight's interleaver, over rows that are handed out as copies."""

    batcher: RowBatcher

    #: The engine's LoRA adapters, where it has them enabled.
    adapters: LoraAdapters | None = None

    #: The forward's thread state, while blocks are served at one place of it.
    outer: State | None = None
    busy: bool

    #: Whether a request of this step draws its token from the thread's own generators.
    #: Only then must a block's draws be kept from them, which costs each wait some copies.
    guards_random = False

    #: The blocks that wait at each location; nnsight keeps a set, and looks through all blocks.
    parked: Mapping[str, Sequence[Mediator]]

    #: What takes rows of this step for all of its requests at once, by location.
    row_consumers: Mapping[str, Sequence[RowConsumer]] = MappingProxyType({})

    def reindex(self) -> None:
        for mediator in self.mediators:
            for cache in mediator.caches:
                cache.__class__ = PrivateCache
        super().reindex()
        self.busy = self.busy or bool(self.row_consumers)

    def _reindex_parked(self) -> None:
        parked: dict[str, list[Mediator]] = {}
        for mediator in self.mediators:
            pending = mediator.pending
            if pending is not None and pending.provider is not None:
                parked.setdefault(pending.provider, []).append(mediator)
        self.parked = parked

    def _ready(self, provider: str) -> list[Mediator]:
        return [
            mediator
            for mediator in self.parked.get(provider, ())
            if (pending := mediator.pending) is not None
            and pending.provider == provider
            and pending.iteration == mediator.occurrence(provider)
        ]

    def handle(self, provider: str, value: Any) -> Any:
        if not (
            provider in self.parked
            or provider in self.observers
            or provider in self.taps
            or provider in self.row_consumers
        ):
            # Most of what a forward passes. An engine on graphs serves no more than its taps.
            if not (self.taps and provider.endswith((".input", ".output", ".skip"))):
                self.counts[provider] = self.counts.get(provider, 0) + 1
            return value
        value = self._serve(provider, value)
        for consumer in self.row_consumers.get(provider, ()):
            whole = value
            if self.fragments is not None and self.fragments.fragmented(provider):
                whole, _ = self.fragments.whole(provider, value)
            consumer.arrive(provider, whole)
        return value

    def _serve(self, provider: str, value: Any) -> Any:
        if provider not in self.parked:
            return super().handle(provider, value)
        self.batcher.arrive(self.parked[provider])
        self.outer = thread_state()
        try:
            return super().handle(provider, value)
        finally:
            self.outer = None
