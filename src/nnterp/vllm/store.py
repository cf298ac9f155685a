"""Where the rows that a `collect` keeps go: memory that the caller's process uses as it is.

From a GPU they leave on a stream of their own, into pinned memory, while the forward goes on;
they are carried on from there when it is over, or when the pinned memory, which is bounded,
is used up. The carrying is one thread's, in operations that the processor's cores share: threads
beside the forward would take turns with its launching, and slow it more than they save.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..collecting.gather import Store
from .parcels import Address, Delivery, Tray
from .rows import outside_inference_mode

#: The size of a piece of pinned memory, and how many there are at most.
_PIECE = 4 << 20
_PIECES = 64

#: The cores that carry.
_CORES = max(1, min(8, (os.cpu_count() or 1) // 2))


class HostStore(Store):
    """Results in memory that the caller can use.

    Args:
        caller: The process that will.
    """

    def __init__(self, caller: Address) -> None:
        self._caller = caller
        self._trays: list[Tray] = []
        self._on_gpu = False

    def make(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # The caller may want gradients, which a tensor made in inference mode cannot have.
        with outside_inference_mode():
            tray = Tray(shape, dtype, self._caller)
        self._trays.append(tray)
        return tray.tensor

    def put(self, rows: Tensor, into: Tensor, targets: Tensor | slice) -> None:
        if rows.is_cuda:
            self._on_gpu = True
            outflow().send(rows, into, targets)
        else:
            into[targets] = rows

    def deliver(self, results: Mapping[str, Tensor]) -> dict[str, Delivery]:
        """``results``, of those this store made, for the caller's process; the rest is let go."""
        if self._on_gpu:
            outflow().settle()
        trays = {id(tray.tensor): tray for tray in self._trays}
        self._trays.clear()
        delivered = {name: Delivery(trays.pop(id(own))) for name, own in results.items()}
        for tray in trays.values():
            tray.discard()
        return delivered

    def discard(self) -> None:
        """Let go of everything."""
        self.deliver({})


class _Underway(NamedTuple):
    """Rows on their way through pinned memory.

    Attributes:
        piece: The pinned memory they pass through.
        pinned: The part of it that is theirs.
        arrived: When they are in it.
        into: The result they belong to.
        targets: Where.
    """

    piece: Tensor
    pinned: Tensor
    arrived: torch.cuda.Event
    into: Tensor
    targets: Tensor | slice


class Outflow:
    """The way from a GPU to the host; one serves a process for its life."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._free: list[Tensor] = []
        self._made = 0
        self._underway: deque[_Underway] = deque()

    def send(self, rows: Tensor, into: Tensor, targets: Tensor | slice) -> None:
        """Have ``rows`` at ``targets`` of ``into`` once `settle` returns."""
        rows = rows.contiguous()
        self._stream.wait_stream(torch.cuda.current_stream())
        rows.record_stream(self._stream)
        at_once = max(1, _PIECE // max(1, rows[0].nbytes))
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            piece = self._piece(part.nbytes)
            pinned = piece[: part.nbytes].view(part.dtype).view(part.shape)
            with torch.cuda.stream(self._stream):
                pinned.copy_(part, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record()
            own = _part(targets, start, len(part))
            self._underway.append(_Underway(piece, pinned, arrived, into, own))

    def _piece(self, nbytes: int) -> Tensor:
        if nbytes > _PIECE:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if not self._free and self._made < _PIECES:
            self._made += 1
            return torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
        while not self._free:
            self._carry()
        return self._free.pop()

    def _carry(self) -> None:
        piece, pinned, arrived, into, targets = self._underway.popleft()
        arrived.synchronize()
        into[targets] = pinned
        if len(piece) == _PIECE:
            self._free.append(piece)

    def settle(self) -> None:
        """Wait until all that was sent is there."""
        threads = torch.get_num_threads()
        torch.set_num_threads(max(threads, _CORES))
        while self._underway:
            self._carry()
        torch.set_num_threads(threads)


@cache
def outflow() -> Outflow:
    """This process's way from its GPU to the host."""
    return Outflow()


def _part(targets: Tensor | slice, start: int, count: int) -> Tensor | slice:
    if isinstance(targets, slice):
        return slice(targets.start + start, targets.start + start + count)
    return targets[start : start + count]
