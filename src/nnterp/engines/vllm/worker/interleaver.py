"""Interleaves blocks and row consumers with a forward over the rows of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Keeps copies in nnsight's ``tracer.cache()``, which would keep the engine's own buffers."""

    def _transform(self, value: Any) -> Any:
        return super()._transform(apply(value, copied, torch.Tensor))


class RowConsumer(Protocol):
    """Takes rows out of a step, or edits them, without waiting for them as a block does."""

    @property
    def locations(self) -> Iterable[str]:
        """Return the locations at which it is to be given what the step holds."""

    def arrive(self, location: str, content: Any) -> Any:
        """Take some of what the step holds at ``location``.

        Args:
            location: The nnsight location.
            content: What arrived there, with every request's rows, and the heads of all ranks.

        Returns:
            What the model goes on with: ``content`` itself, unless it edits it.
        """


class RowInterleaver(VLLMInterleaver):
    """Runs blocks as nnsight's interleaver does, over rows that are handed out as copies."""

    batcher: RowBatcher

    #: The engine's LoRA adapters, or None where it has them disabled.
    adapters: LoraAdapters | None = None

    #: The forward's thread state, while blocks are served at one location; None otherwise.
    outer: State | None = None
    busy: bool

    #: Whether a request of this step samples its token from the thread's own random generators.
    #: Only then must a block's draws be kept from them, which costs some copies at each wait.
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
        """Index the blocks by the location that each waits at."""
        parked: dict[str, list[Mediator]] = {}
        for mediator in self.mediators:
            pending = mediator.pending
            if pending is not None and pending.provider is not None:
                parked.setdefault(pending.provider, []).append(mediator)
        self.parked = parked

    def _ready(self, provider: str) -> list[Mediator]:
        """Return the blocks that wait for the occurrence of ``provider`` that the forward is at."""
        return [
            mediator
            for mediator in self.parked.get(provider, ())
            if (pending := mediator.pending) is not None
            and pending.provider == provider
            and pending.iteration == mediator.occurrence(provider)
        ]

    def handle(self, provider: str, value: Any) -> Any:
        """Serve ``value`` to the blocks, then to the row consumers, that want ``provider``."""
        if not (
            provider in self.parked
            or provider in self.observers
            or provider in self.taps
            or provider in self.row_consumers
        ):
            # Nobody wants most of what a forward passes, and it is only counted. An engine on CUDA
            # graphs serves no module's input or output but its taps, so it counts no other.
            if not (self.taps and provider.endswith((".input", ".output", ".skip"))):
                self.counts[provider] = self.counts.get(provider, 0) + 1
            return value
        value = self._serve(provider, value)
        consumers = self.row_consumers.get(provider)
        return value if consumers is None else self._consume(provider, value, consumers)

    def _consume(self, provider: str, value: Any, consumers: Sequence[RowConsumer]) -> Any:
        """Give ``value`` to ``consumers``; return what the model goes on with."""
        whole, split = value, None
        if self.fragments is not None and self.fragments.fragmented(provider):
            whole, split = self.fragments.whole(provider, value)
        if provider not in self.parked:
            self.batcher.arrive(())
        content = whole
        for consumer in consumers:
            content = consumer.arrive(provider, content)
        if content is whole:
            return value
        return content if split is None else split(content)

    def _serve(self, provider: str, value: Any) -> Any:
        """Serve ``value`` to the blocks that wait for it; return what the model goes on with."""
        if provider not in self.parked:
            return super().handle(provider, value)
        # A cache records what is there as soon as the blocks are served, and a fragment is split.
        whole = self.fragments is None or not self.fragments.fragmented(provider)
        takes = whole and provider not in self.observers
        self.batcher.arrive(self.parked[provider], takes)
        self.outer = thread_state()
        try:
            return self.batcher.settled(super().handle(provider, value))
        finally:
            self.outer = None
