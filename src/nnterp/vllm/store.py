"""Where the rows that a `collect` keeps go: memory that the caller's process uses as it is.

From a GPU they leave on a stream of their own, into pinned memory, and threads carry them on
from there, so that neither the forward nor the launching of it waits. Pinned memory is
bounded: when all of it is on its way, the forward's launching waits for some to be free.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from ..collecting.gather import Store
from .parcels import Address, Delivery, Tray
from .rows import outside_inference_mode

#: The size of a piece of pinned memory, and how many there are at most.
_PIECE = 4 << 20
_PIECES = 64

#: Writing to memory that was never used before is slow, and the system's affair; several
#: threads can have it done at once.
CARRIERS = max(1, min(8, (os.cpu_count() or 1) // 2))


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


class Outflow:
    """The way from a GPU to the host; one serves a process for its life."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._free: queue.Queue[Tensor] = queue.Queue()
        self._made = 0
        self._carriers = ThreadPoolExecutor(CARRIERS, thread_name_prefix="nnterp-outflow")
        self._underway: list[Future[None]] = []

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
            carried = self._carriers.submit(self._carry, piece, pinned, arrived, into, own)
            self._underway.append(carried)

    def _piece(self, nbytes: int) -> Tensor:
        if nbytes > _PIECE:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if self._free.empty() and self._made < _PIECES:
            self._made += 1
            return torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
        return self._free.get()

    def _carry(
        self,
        piece: Tensor,
        pinned: Tensor,
        arrived: torch.cuda.Event,
        into: Tensor,
        targets: Tensor | slice,
    ) -> None:
        try:
            arrived.synchronize()
            into[targets] = pinned
        finally:
            if len(piece) == _PIECE:
                self._free.put(piece)

    def settle(self) -> None:
        """Wait until all that was sent is there."""
        underway, self._underway = self._underway, []
        for carried in underway:
            carried.result()


@cache
def outflow() -> Outflow:
    """This process's way from its GPU to the host."""
    return Outflow()


def _part(targets: Tensor | slice, start: int, count: int) -> Tensor | slice:
    if isinstance(targets, slice):
        return slice(targets.start + start, targets.start + start + count)
    return targets[start : start + count]
