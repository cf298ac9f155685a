"""Copies from a GPU to the host that the forward does not wait for.

Rows are copied into pinned memory on a stream of their own, and a thread moves them on from
there. Pinned memory is bounded: when all of it is in use, the forward's launching waits for
some to be free."""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

import torch
from torch import Tensor

from nnterp.lifetime import Reading, share_with_stream

#: The size of a piece of pinned memory, and how many there are at most.
_PIECE = 16 << 20


_PIECES = 32


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


class DeviceToHostCopier:
    """The way from a GPU to the host."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._free: queue.Queue[Tensor] = queue.Queue()
        self._made = 0
        self._underway: queue.Queue[_Underway | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    def send(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        """Have ``rows``, as they are now, at ``targets`` of ``into`` once `close` returns."""
        if self._failure is not None:
            raise self._failure
        # They are on their way still as the forward goes on to write to what they are cut from.
        own = rows.packed()
        share_with_stream(own, self._stream)
        at_once = max(1, _PIECE // max(1, own[0].nbytes))
        for start in range(0, len(own), at_once):
            part = own[start : start + at_once]
            piece = self._piece(part.nbytes)
            with torch.cuda.stream(self._stream):
                piece[: part.nbytes].view(part.dtype).view(part.shape).copy_(
                    part, non_blocking=True
                )
                arrived = torch.cuda.Event()
                arrived.record()
            where = _part(targets, start, len(part))
            self._underway.put(_Underway(piece, part.nbytes, arrived, into, where))

    def _piece(self, nbytes: int) -> Tensor:
        if nbytes > _PIECE:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if self._free.empty() and self._made < _PIECES:
            self._made += 1
            return torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
        return self._free.get()

    def _carry(self) -> None:
        while (underway := self._underway.get()) is not None:
            try:
                underway.arrived.synchronize()
                flat = underway.piece[: underway.nbytes].view(underway.into.dtype)
                underway.into[underway.targets] = flat.view(-1, *underway.into.shape[1:])
            except BaseException as error:  # raised in the forward's thread, by `send`
                self._failure = error
            if len(underway.piece) == _PIECE:
                self._free.put(underway.piece)

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
