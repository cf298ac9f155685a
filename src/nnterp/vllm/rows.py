"""A request's rows, handed over as private copies and put back in place.

vLLM runs every request of a step in one slab: ``[tokens, hidden]``, or
``[1, tokens, hidden]`` under its Transformers backend, with the heads of queries, keys
and values flattened into the last axis. A block is entitled to its own request's rows.
`PrivateRows` copies them out in the layout of the contract, so that nothing a later
kernel writes can change what was read, and `RowBatcher` copies edited ones back into
those rows and no others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
from nnsight.intervention.batching import BatchGroup
from nnsight.intervention.cache import Cache
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.vllm.batching import VLLMBatcher
from nnsight.modeling.vllm.interleaver import VLLMInterleaver
from nnsight.util import apply
from torch import Tensor

from ..composed import Completed
from ..errors import Unavailable
from ..serving import Serving, StandardEnvoy
from ..sites import Site
from ..values import Engine, Value
from .adapters import Adapters
from .thread_state import State, state

#: ``torch.inference_mode(False)`` without what that class adds. A tensor made in inference
#: mode has no version counter, and the counter is how an in-place edit is seen. Nothing under
#: it may wait for the model: the mode is the thread's, and other blocks run on it.
outside_inference_mode = partial(torch._C._InferenceMode, False)

#: The attribute of an attention envoy that counts the heads of an axis.
HEAD_COUNTS = {"heads": "num_heads", "kv_heads": "num_kv_heads"}


@dataclass(frozen=True)
class Edit:
    """A location's content before and after a block's edits.

    Leaves the block left alone are the same objects in both.
    """

    before: Any
    after: Any


class RefusedSplice(ValueError):
    """A value that does not fit the rows it would be spliced into."""


class Step:
    """What a whole step holds at a location, as it arrived for one block.

    Attributes:
        content: What arrived, with every request's rows.
        block: The mediator of the request that it arrived for.
    """

    __slots__ = ("block", "content")

    def __init__(self, content: Any, block: Any) -> None:
        self.content = content
        self.block = block

    def own(self) -> Any:
        """The part that belongs to the block's request."""
        batcher: RowBatcher = self.block.interleaver.batcher
        return batcher.narrow(self.content, self.block.batch_group)

    def piece(self, site: Site, value: Value, host: StandardEnvoy) -> Tensor | None:
        """The request's rows out of one reading made for the whole step, if one was."""
        batcher: RowBatcher = self.block.interleaver.batcher
        return batcher.piece(self, site, value, host)


class Handed:
    """What nnsight's own handle on a location is given: copies of the request's rows too.

    As a `Visit` does, it stands where nnsight keeps a read's write-back.

    Args:
        location: The location.
        occurrence: Which visit of it.
        batcher: What cuts the rows out.
        content: What the whole step holds there.
        group: The request's rows.
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

        def copied(tensor: Tensor) -> Tensor:
            if group is None or batcher.token_axis(tensor) is None:
                return tensor
            with outside_inference_mode():
                own = batcher.narrow(tensor, group).clone()
            self._versions.append((own, own._version))
            return own

        self.private = apply(content, copied, Tensor)

    def edited(self) -> bool:
        """Whether the block has changed any of it in place."""
        return any(version != own._version for own, version in self._versions)

    def fn(self) -> Edit:
        """What to swap in to have the changes at the location."""
        changed = {id(own) for own, version in self._versions if version != own._version}
        after = apply(self.private, lambda own: own[...] if id(own) in changed else own, Tensor)
        return Edit(self.private, after)


class PrivateRows(Serving):
    """vLLM's way of handing values over."""

    engine: Engine = "vllm"
    live = False

    def serve(self, site: Site, value: Value, host: StandardEnvoy, arrived: Any) -> Tensor:
        # A completed site holds rows of this request alone.
        if type(arrived) is Step and type(site) is not Completed:
            piece = arrived.piece(site, value, host)
            if piece is not None:
                return piece
        raw = self.own(arrived)
        block: Any = Mediator.current(value.name)
        with outside_inference_mode(), _adapted(block):
            reading = site.read(host, raw)
            private = reading.tensor if reading.fresh else reading.tensor.clone()
        return self._own_rows(private, value, host)

    def own(self, arrived: Any) -> Any:
        return arrived.own() if type(arrived) is Step else arrived

    def adopt(self, tensor: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        with outside_inference_mode():
            private = tensor.clone()
        return self._own_rows(private, value, host)

    @staticmethod
    def _own_rows(private: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        """``private`` in the layout of ``value``; refused if it is not just this request's."""
        served = batched(private, value, host)
        axis = value.token_axis
        group = Mediator.current(value.name).batch_group
        if axis is not None and group is not None and served.shape[axis] != group[1]:
            raise Unavailable(
                f"{host.path}.{value.name}: the engine passes {served.shape[axis]} rows here where "
                f"this request has {group[1]} tokens, so they are not one row a token and not only "
                "this request's"
            )
        return served

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        heads_first = value.axes[1] in HEAD_COUNTS
        return (view.transpose(1, 2) if heads_first else view).reshape(like.shape)

    def edit(self, before: Any, after: Any) -> Any:
        return Edit(before, after)

    def unavailable_now(self, value: Value) -> str | None:
        if "vllm" not in value.prefill_only_on:
            return None
        cached = getattr(Mediator.current(value.name), "cached_tokens", 0)
        if not cached:
            return None
        return (
            f"{value.name} is served on the prefill step only: {cached} of this sequence's keys "
            "are in the engine's cache, out of reach of a recomputation. Read it in a trace of "
            "its own over the whole text"
        )


def _adapted(block: Any) -> contextlib.AbstractContextManager[None]:
    """While a site is read for ``block``, which may take modules of the model's on its rows."""
    adapters = block.interleaver.adapters
    if adapters is None or block.batch_group is None:
        return _NOTHING
    return adapters.on_rows(block.batch_group[1], block.adapter)


#: Entered many times at once, for it does nothing.
_NOTHING = contextlib.nullcontext()


def batched(rows: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
    """``rows`` in the layout of ``value``: a batch axis of 1 first, heads on their axis."""
    axes = value.axes
    if rows.ndim == len(axes):
        return rows
    for axis, count in HEAD_COUNTS.items():
        if axis in axes:
            heads = rows.view(rows.shape[0], getattr(host, count), -1)
            return (heads.transpose(0, 1) if axes.index(axis) == 1 else heads)[None]
    return rows[None]


class RowBatcher(VLLMBatcher):
    """Takes a request's rows out of a step, and puts a block's edits back into them.

    Where most of a step's rows are read, a value is computed, or copied, for all of them at
    once and handed out in pieces; where few are, each is read on its own, for a piece keeps
    alive the whole it was cut from.

    The first edit of a location in a step copies the slab, and every edit after it, of
    this request or another, is written into that copy: the cost is one slab a location,
    however many requests edit it, and a tensor the model also uses elsewhere keeps its
    own values there.
    """

    def __init__(self) -> None:
        super().__init__(None)
        #: The rows of each request of the step, in order.
        self.lengths: list[int] = []
        self._copies: list[Tensor] = []
        self._pieces: dict[tuple[int, str], Sequence[Tensor] | None] | None = None
        #: The first rows of the requests that have edited the location, whose pieces are stale.
        self._edited: set[int] = set()

    def arrive(self, readers: Iterable[Any]) -> None:
        """The forward has reached another location: what was copied before is the model's.

        Args:
            readers: The blocks that wait for it.
        """
        self._copies.clear()
        self._edited.clear()
        rows = sum(block.batch_group[1] for block in readers if block.batch_group is not None)
        self._pieces = {} if 2 * rows > self.total else None

    def token_axis(self, tensor: Tensor) -> int | None:
        """The axis of ``tensor`` that holds the step's rows, or None."""
        return self._token_dim(tensor)

    def piece(self, step: Step, site: Site, value: Value, host: StandardEnvoy) -> Tensor | None:
        """The rows of ``step``'s block out of a reading of all of them, or None."""
        if self._pieces is None or step.block.batch_group[0] in self._edited:
            return None
        key = (id(host), value.name)
        if key not in self._pieces:
            self._pieces[key] = self._cut(step.content, site, value, host)
        pieces = self._pieces[key]
        if pieces is None:
            return None
        piece = pieces[step.block.row]
        return piece if piece.shape[value.token_axis] == step.block.batch_group[1] else None

    def _cut(
        self, content: Any, site: Site, value: Value, host: StandardEnvoy
    ) -> Sequence[Tensor] | None:
        if value.token_axis is None or "key" in value.axes:
            return None
        with outside_inference_mode():
            reading = site.read(host, content)
            whole = batched(reading.tensor, value, host)
            if whole.shape[value.token_axis] != sum(self.lengths):
                return None
            if not reading.fresh:
                whole = whole.clone()
            # Unlike views, these count their own edits.
            return torch.unsafe_split_with_sizes(whole, self.lengths, value.token_axis)

    def narrow(self, value: Any, group: BatchGroup) -> Any:
        # The two things blocks mostly pass, without nnsight's walk through structures.
        if group is not None:
            if type(value) is Tensor:
                return self._narrow_tensor(value, group)
            if type(value) is tuple and all(type(part) is Tensor for part in value):
                return tuple([self._narrow_tensor(part, group) for part in value])
        return super().narrow(value, group)

    def widen(self, full: Any, group: BatchGroup, edited: Any) -> Any:
        if group is not None:
            self._edited.add(group[0])
        if isinstance(edited, Edit):
            return self._merge(full, group, edited.before, edited.after)
        # nnsight's own handles swap in whatever they are given.
        own = self.narrow(full, group)
        misfit = _misfit(own, edited)
        if misfit is not None:
            raise RefusedSplice(misfit)
        return self._merge(full, group, own, edited)

    def _merge(self, full: Any, group: BatchGroup, before: Any, after: Any) -> Any:
        if before is after:
            return full
        if isinstance(full, Tensor):
            return self._write_rows(full, group, after)
        if isinstance(full, dict):
            return {key: self._merge(full[key], group, before[key], after[key]) for key in full}
        if not isinstance(full, (tuple, list)):
            return after
        parts = zip(full, before, after, strict=True)
        merged = [self._merge(part, group, *sides) for part, *sides in parts]
        return full._make(merged) if hasattr(full, "_make") else type(full)(merged)

    def _write_rows(self, full: Tensor, group: BatchGroup, rows: Tensor) -> Tensor:
        axis = self._token_dim(full)
        if axis is None or group is None:
            raise ValueError(
                f"a value of shape {tuple(full.shape)} holds no rows of this request to edit"
            )
        if not any(full is copy for copy in self._copies):
            full = full.clone()
            self._copies.append(full)
        full.narrow(axis, *group).copy_(rows)
        return full


def _misfit(served: Any, offered: Any) -> str | None:
    """Why ``offered`` cannot take the place of ``served``, or None where it can."""
    if isinstance(served, Tensor):
        if not isinstance(offered, Tensor):
            return f"holds a tensor of shape {tuple(served.shape)}; it cannot become {offered!r}"
        if served.shape != offered.shape:
            return (
                f"has shape {tuple(served.shape)} on this request, and a value of shape "
                f"{tuple(offered.shape)} cannot take its place"
            )
        if offered.is_meta or offered.layout is not torch.strided:
            return "takes dense tensors with values only"
        return None
    if isinstance(served, (tuple, list)):
        if not isinstance(offered, (tuple, list)) or len(offered) != len(served):
            given = type(offered).__name__
            return f"is a {type(served).__name__} of {len(served)}; it cannot become a {given}"
        return next(filter(None, map(_misfit, served, offered)), None)
    if isinstance(served, dict):
        if not isinstance(offered, dict) or offered.keys() != served.keys():
            return f"is a dict of {sorted(served)}; it cannot become {type(offered).__name__}"
        return next((m for key in served if (m := _misfit(served[key], offered[key]))), None)
    return None


class PrivateCache(Cache):
    """nnsight's ``tracer.cache()``, keeping copies: it would keep the engine's own buffers."""

    def _transform(self, value: Any) -> Any:
        return super()._transform(apply(value, torch.Tensor.clone, torch.Tensor))


class Taker(Protocol):
    """What takes rows out of a step without waiting for them as a block does."""

    def arrive(self, location: str, content: Any) -> None:
        """Take some of what the step holds at ``location``."""


class RowInterleaver(VLLMInterleaver):
    """nnsight's interleaver, over rows that are handed out as copies."""

    batcher: RowBatcher

    #: The engine's LoRA adapters, where it has them enabled.
    adapters: Adapters | None = None

    #: The forward's thread state, while blocks are served at one place of it.
    outer: State | None = None
    busy: bool

    #: The blocks that wait at each location; nnsight keeps a set, and looks through all blocks.
    parked: Mapping[str, Sequence[Mediator]]

    #: What takes rows of this step for all of its requests at once, by location.
    takers: Mapping[str, Sequence[Taker]] = MappingProxyType({})

    def reindex(self) -> None:
        for mediator in self.mediators:
            for cache in mediator.caches:
                cache.__class__ = PrivateCache
        super().reindex()
        self.busy = self.busy or bool(self.takers)

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
            or provider in self.takers
        ):
            # Most of what a forward passes. An engine on graphs serves no more than its taps.
            if not (self.taps and provider.endswith((".input", ".output", ".skip"))):
                self.counts[provider] = self.counts.get(provider, 0) + 1
            return value
        value = self._serve(provider, value)
        for taker in self.takers.get(provider, ()):
            whole = value
            if self.fragments is not None and self.fragments.fragmented(provider):
                whole, _ = self.fragments.whole(provider, value)
            taker.arrive(provider, whole)
        return value

    def _serve(self, provider: str, value: Any) -> Any:
        if provider not in self.parked:
            return super().handle(provider, value)
        self.batcher.arrive(self.parked[provider])
        self.outer = state()
        try:
            return super().handle(provider, value)
        finally:
            self.outer = None
