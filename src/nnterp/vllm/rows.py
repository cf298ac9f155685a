"""A request's rows, handed over as private copies and put back in place.

vLLM runs every request of a step in one slab: ``[tokens, hidden]``, or
``[1, tokens, hidden]`` under its Transformers backend, with the heads of queries, keys
and values flattened into the last axis. A block is entitled to its own request's rows.
`PrivateRows` copies them out in the layout of the contract, so that nothing a later
kernel writes can change what was read, and `RowBatcher` copies edited ones back into
those rows and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.batching import BatchGroup
from nnsight.intervention.cache import Cache
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.vllm.batching import VLLMBatcher
from nnsight.modeling.vllm.interleaver import VLLMInterleaver
from nnsight.util import apply
from torch import Tensor

from ..eproperty import Serving, StandardEnvoy
from ..errors import Unavailable
from ..sites import Reading
from ..values import Engine, Value

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
    """A value that does not fit the rows it would be spliced into.

    Attributes:
        full: The step's own value, as it was.
    """

    def __init__(self, message: str, full: Any) -> None:
        super().__init__(message)
        self.full = full


class PrivateRows(Serving):
    """vLLM's way of handing values over."""

    engine: Engine = "vllm"
    live = False

    def serve(self, take: Callable[[], Reading], value: Value, host: StandardEnvoy) -> Reading:
        # A tensor made in inference mode has no version counter, and the counter is how
        # an in-place edit is seen. Nothing in here may wait for the model: the mode is
        # the thread's, and other blocks run on it.
        with torch.inference_mode(False):
            tensor, fresh = take()
            private = tensor if fresh else tensor.clone()
        served = batched(private, value, host)
        self._require_own_rows(served, value, host)
        return Reading(served, fresh=True)

    @staticmethod
    def _require_own_rows(served: Tensor, value: Value, host: StandardEnvoy) -> None:
        """Refuse a tensor that was not narrowed to this request, as a neighbour's would be."""
        axis = next((a for a in ("seq", "query") if a in value.axes), None)
        group = Mediator.current(value.name).batch_group
        if axis is None or group is None:
            return
        rows, own = served.shape[value.axes.index(axis)], group[1]
        if rows != own:
            raise Unavailable(
                f"{host.path}.{value.name}: the engine passes {rows} rows here where this request "
                f"has {own} tokens, so they are not one row a token and not only this request's"
            )

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


def batched(rows: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
    """``rows`` in the layout of ``value``: a batch axis of 1 first, heads on their axis."""
    axes = value.axes
    if rows.ndim == len(axes):
        return rows
    for axis, count in HEAD_COUNTS.items():
        if axis in axes:
            heads = rows.view(rows.shape[0], getattr(host, count), -1)
            return (heads.transpose(0, 1) if axes.index(axis) == 1 else heads).unsqueeze(0)
    return rows.unsqueeze(0)


class RowBatcher(VLLMBatcher):
    """Puts a block's edits back into its request's rows.

    The first edit of a location in a step copies the slab, and every edit after it, of
    this request or another, is written into that copy: the cost is one slab a location,
    however many requests edit it, and a tensor the model also uses elsewhere keeps its
    own values there.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._copies: list[Tensor] = []

    def arrive(self) -> None:
        """The forward has reached another location: what was copied before is the model's."""
        self._copies.clear()

    def widen(self, full: Any, group: BatchGroup, edited: Any) -> Any:
        if isinstance(edited, Edit):
            return self._merge(full, group, edited.before, edited.after)
        # nnsight's own handles splice whatever they are given.
        misfit = _misfit(self.narrow(full, group), edited)
        if misfit is not None:
            raise RefusedSplice(misfit, full)
        return super().widen(full, group, edited)

    def _merge(self, full: Any, group: BatchGroup, before: Any, after: Any) -> Any:
        if before is after:
            return full
        if isinstance(full, Tensor):
            return self._write_rows(full, group, after)
        if isinstance(full, dict):
            return {key: self._merge(full[key], group, before[key], after[key]) for key in full}
        parts = zip(full, before, after, strict=True)
        return type(full)([self._merge(part, group, *sides) for part, *sides in parts])

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


class RowInterleaver(VLLMInterleaver):
    """nnsight's interleaver, over rows that are handed out as copies."""

    batcher: RowBatcher

    def reindex(self) -> None:
        for mediator in self.mediators:
            for cache in mediator.caches:
                cache.__class__ = PrivateCache
        super().reindex()

    def handle(self, provider: str, value: Any) -> Any:
        if provider in self.parked:
            self.batcher.arrive()
        return super().handle(provider, value)
