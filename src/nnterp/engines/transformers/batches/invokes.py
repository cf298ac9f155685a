"""Runs several invokes in one forward, each with its own rows and its own tokens.

nnsight runs the invokes of a trace as one batch, whose rows it pads to one length. A block must
see what it would see with its prompt alone: its own rows, and of those the tokens it brought, with
padding only if it brought any. `Invokes` writes what a block edits into its rows and no others,
and records the padding that was added to them; `invoke_part` removes that padding again, by the
axes of the value that is served.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet
from nnsight.intervention.batching import Batcher, BatchGroup
from nnsight.intervention.interleaver import Event, Mediator, Pending
from torch import Tensor

from nnterp.engines.transformers.batches.batching import Padding, assemble
from nnterp.errors import Unavailable
from nnterp.lifetime import copied
from nnterp.tracing.open_values import OpenValues
from nnterp.tracing.swap import Swap
from nnterp.vocabulary.values import Value


@dataclass
class Look:
    """A `Look` is a request to see what the whole batch has at a location, without changing it.

    Attributes:
        found: What the batch has there, once the request has been answered.
    """

    found: Any = None


class Invokes(Batcher):
    """`Invokes` is the invokes of a trace as one batch.

    Attributes:
        padding: The padding added to an invoke's rows, by the index of its first row.
    """

    def __init__(self, envoy: Any, kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(envoy, kwargs)
        self.padding: dict[int, Padding] = {}
        self._firsts: list[int] = []

    def add(self, *inputs: Any, **kwargs: Any) -> BatchGroup:
        group = super().add(*inputs, **kwargs)
        if group is not None:
            self._firsts.append(group[0])
        return group

    def assemble(self, fn: Any) -> tuple[Any, dict[str, Any]]:
        args, kwargs, padding = assemble(self.envoy, self.invokes, fn, self.extra_kwargs)
        self.padding = {
            first: own for first, own in zip(self._firsts, padding, strict=True) if own.added
        }
        return args, kwargs

    def widen(self, full: Any, group: BatchGroup, edited: Any) -> Any:
        if isinstance(edited, Look):
            edited.found = full
            return full
        if not isinstance(edited, Swap):
            return super().widen(full, group, edited)
        if not self.batching or group is None:
            return edited.after

        def spliced(whole: Tensor, rows: Tensor) -> Tensor:
            if len(whole) != self.total:
                return rows
            return with_part(whole, (slice(group[0], sum(group)),), rows)

        return merged(full, edited.before, edited.after, spliced)


def merged(full: Any, before: Any, after: Any, combine: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Return ``full`` with the tensors that differ between ``before`` and ``after`` replaced.

    Args:
        full: A tree of tensors: the content of a location for the whole batch.
        before: A tree of the same structure: the block's content before its edits.
        after: The same after them; leaves that were not edited are the same objects.
        combine: Takes a tensor of ``full`` and the one of ``after``, and returns the replacement.
    """
    if after is before:
        return full
    if isinstance(after, Tensor):
        return combine(full, after)
    if isinstance(after, dict):
        changed = copy.copy(full)
        for key in after:
            changed[key] = merged(full[key], before[key], after[key], combine)
        return changed
    if not isinstance(after, (tuple, list)):
        return after
    parts = zip(full, before, after, strict=True)
    return type(full)(merged(*part, combine) for part in parts)


def with_part(whole: Tensor, index: tuple[slice, ...], part: Tensor) -> Tensor:
    """Return a new tensor like ``whole``, in the same layout, with ``part`` at ``index``."""
    new = copied(whole)
    new[index] = part
    return new


def invoke_part(tensor: Tensor, value: Value) -> tuple[slice, ...] | None:
    """Return the index of the running block's part of ``tensor``, or None where it is all of it.

    Args:
        tensor: It holds ``value`` for the whole batch, in the value's layout, or for the invoke
            alone.
        value: The vocabulary row.

    Raises:
        Unavailable: The rows or tokens of one invoke cannot be told from the others here.
    """
    block = Mediator.current(value.name)
    batcher, group = block.interleaver.batcher, block.batch_group
    if group is None or not isinstance(batcher, Invokes) or not batcher.batching:
        return None
    first, size = group
    padding = batcher.padding.get(first)
    if padding is None and len(tensor) == size:
        return None
    times, rest = divmod(len(tensor), batcher.total)
    if len(tensor) == size:
        rows = slice(0, size)
    elif not rest:
        # There are several beams per row.
        rows = slice(first * times, (first + size) * times)
    else:
        raise Unavailable(
            f"{value.name} has {len(tensor)} rows here where the batch has {batcher.total}, and an "
            "invoke's own are not told apart; trace its prompt alone"
        )
    index = [rows]
    step = block.occurrence(f"{batcher.envoy.path}.input") - 1
    for axis, count in zip(value.axes[1:], tensor.shape[1:], strict=True):
        own: slice | None = slice(0, count)
        if padding is not None and axis in ("seq", "query", "key"):
            own = padding.own(count, step) if count <= padding.width + step else None
        if own is None:
            raise Unavailable(
                f"{value.name} has {count} {axis} positions here, of which those of a prompt "
                "padded to the length of others are not told apart; trace it alone, or beside "
                "prompts of its own length"
            )
        index.append(own)
    return tuple(index)


class InvokeBlock(Mediator):
    """An `InvokeBlock` is the mediator of one invoke's block.

    Attributes:
        transform: The values that the block has open, or nnsight's own write-back.
    """

    transform: Any

    def flush(self) -> None:
        """Put the values that are open into the model; do nothing if the model has them all."""
        opened = self.transform
        if type(opened) is not OpenValues:
            super().flush()
        else:
            self.transform = None
            if opened.changed():
                swap = Pending(Event.SWAP, opened.location, opened.occurrence, opened.fn())
                getcurrent().parent.switch(swap)

    def handle(self, provider: str, value: Any) -> Any:
        value = super().handle(provider, value)
        opened = self.transform
        waiting = self.pending is not None and self.pending.event is Event.BARRIER
        if waiting and type(opened) is OpenValues and opened.location == provider:
            # nnsight makes a block wait at a barrier without a flush, and the model moves on.
            self.transform = None
            if opened.changed():
                flushing = greenlet(opened.fn)
                flushing.mediator = weakref.ref(self)
                value = self.interleaver.batcher.widen(value, self.batch_group, flushing.switch())
        return value
