"""Where the rows that a `collect` keeps go: memory that the caller's process uses as it is.

Results that are neither small nor very large stay on the GPU until the end, when the caller's
process fetches them from there: nothing is faster. The others leave as they come, on a stream
of their own, into pinned memory, and a thread carries them on from there, so that neither the
forward nor the launching of it waits. Pinned memory is bounded: when all of it is on its way,
the forward's launching waits for some to be free.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..collecting.gather import Store
from .memory import MODERATE
from .parcels import Address, Delivery, Tray
from .rows import outside_inference_mode

#: The size of a piece of pinned memory, and how many there are at most.
_PIECE = 16 << 20
_PIECES = 32

#: What a `collect` keeps on a GPU at most, in bytes, and of what is free there the share.
_KEPT = 1 << 30
_SHARE = 1 / 8


class CallersStore(Store):
    """Results in memory that the caller can use.

    Args:
        caller: The process that will.
        sees_gpu: Whether that process can be let into a GPU's memory.
    """

    def __init__(self, caller: Address, sees_gpu: bool) -> None:
        self._caller = caller
        self._fetches = sees_gpu and caller.nearby
        self._trays: list[Tray] = []
        self._on_device = 0
        self._outflow: Outflow | None = None

    def make(self, count: int, rows: Tensor) -> Tensor:
        shape = count, *rows.shape[1:]
        # The caller may want gradients, which a tensor made in inference mode cannot have.
        with outside_inference_mode():
            if rows.is_cuda and self._fits(math.prod(shape) * rows.itemsize):
                return torch.empty(shape, dtype=rows.dtype, device=rows.device)
            tray = Tray(shape, rows.dtype, self._caller)
        self._trays.append(tray)
        return tray.tensor

    def _fits(self, nbytes: int) -> bool:
        """Whether a result of this size stays on the GPU; it is taken into account if so."""
        kept = self._on_device + nbytes
        if not self._fetches or nbytes <= MODERATE or kept > _KEPT:
            return False
        free, _ = torch.cuda.mem_get_info()
        if kept > _SHARE * free:
            return False
        self._on_device = kept
        return True

    def put(self, rows: Tensor, into: Tensor, targets: Tensor | slice) -> None:
        if not rows.is_cuda:
            into[targets] = rows
            return
        if into.is_cuda:
            if isinstance(targets, Tensor):
                targets = targets.to(into.device, non_blocking=True)
            into[targets] = rows
            return
        if self._outflow is None:
            self._outflow = Outflow()
        self._outflow.send(rows, into, targets)

    def deliver(self, results: Mapping[str, Tensor]) -> Delivery:
        """``results``, of those this store made, for the caller's process; the rest is let go."""
        trays = {id(tray.tensor): tray for tray in self._trays}
        self._trays.clear()
        on_device = {name: own for name, own in results.items() if own.is_cuda}
        in_trays = {
            name: trays.pop(id(own)) for name, own in results.items() if name not in on_device
        }
        for tray in trays.values():
            tray.discard()
        return Delivery(in_trays, on_device, self._caller)

    def discard(self) -> None:
        """Let go of everything."""
        self.deliver({})

    def settle(self) -> None:
        """Wait until everything that was put is there, before any of it is delivered.

        Raises:
            BaseException: What kept some of it from getting there.
        """
        if self._outflow is not None:
            outflow, self._outflow = self._outflow, None
            outflow.close()


class _Underway(NamedTuple):
    """Rows on their way through pinned memory.

    Attributes:
        piece: The pinned memory they pass through.
        nbytes: How much of it they fill.
        arrived: When they are in it.
        into: The result they belong to.
        targets: Where.
    """

    piece: Tensor
    nbytes: int
    arrived: torch.cuda.Event
    into: Tensor
    targets: Tensor | slice


class Outflow:
    """The way from a GPU to the host."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._free: queue.Queue[Tensor] = queue.Queue()
        self._made = 0
        self._underway: queue.Queue[_Underway | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    def send(self, rows: Tensor, into: Tensor, targets: Tensor | slice) -> None:
        """Have ``rows``, as they are now, at ``targets`` of ``into`` once `close` returns."""
        if self._failure is not None:
            raise self._failure
        # Rows that adjoin are a view of a buffer that the forward goes on to write to, while
        # they are still on their way.
        rows = rows.clone(memory_format=torch.contiguous_format)
        computed = torch.cuda.Event()
        computed.record()
        self._stream.wait_event(computed)
        rows.record_stream(self._stream)
        at_once = max(1, _PIECE // max(1, rows[0].nbytes))
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            piece = self._piece(part.nbytes)
            with torch.cuda.stream(self._stream):
                piece[: part.nbytes].view(part.dtype).view(part.shape).copy_(
                    part, non_blocking=True
                )
                arrived = torch.cuda.Event()
                arrived.record()
            own = _part(targets, start, len(part))
            self._underway.put(_Underway(piece, part.nbytes, arrived, into, own))

    def _piece(self, nbytes: int) -> Tensor:
        if nbytes > _PIECE:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if self._free.empty() and self._made < _PIECES:
            self._made += 1
            return torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
        return self._free.get()

    def _carry(self) -> None:
        while (parcel := self._underway.get()) is not None:
            try:
                parcel.arrived.synchronize()
                flat = parcel.piece[: parcel.nbytes].view(parcel.into.dtype)
                parcel.into[parcel.targets] = flat.view(-1, *parcel.into.shape[1:])
            except BaseException as error:  # raised in the forward's thread, by `send`
                self._failure = error
            if len(parcel.piece) == _PIECE:
                self._free.put(parcel.piece)

    def close(self) -> None:
        """Wait until all that was sent is there."""
        self._underway.put(None)
        self._carrier.join()
        if self._failure is not None:
            raise self._failure


def _part(targets: Tensor | slice, start: int, count: int) -> Tensor | slice:
    if isinstance(targets, slice):
        return slice(targets.start + start, targets.start + start + count)
    return targets[start : start + count]
