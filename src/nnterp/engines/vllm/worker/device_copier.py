"""Copies rows from a GPU to the host without making the forward wait.

Rows are copied into pinned memory on a CUDA stream of their own, and a thread copies them from
there into the result. Pinned memory is bounded: when all of it is in use, the forward's launching
waits for some to be free. A single row that is larger than a piece of it gets pinned memory beyond
that bound.
"""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

import torch
from torch import Tensor

from nnterp.lifetime import Reading, share_with_stream

#: The size of a piece of pinned memory, in bytes, and how many pieces there are at most.
_PIECE = 16 << 20


_PIECES = 32


class _Underway(NamedTuple):
    """Describes rows that are being copied through pinned memory.

    Attributes:
        piece: The pinned memory that they pass through, as bytes.
        nbytes: How many bytes of it they fill.
        arrived: The event that is recorded on the stream when they are in it.
        into: The result that they belong to, ``[count, ...]``.
        targets: Their rows in it.
    """

    piece: Tensor
    nbytes: int
    arrived: torch.cuda.Event
    into: Tensor
    targets: Tensor | slice


class DeviceToHostCopier:
    """Copies rows from a GPU into results on the host, with a CUDA stream and thread of its own."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._free: queue.Queue[Tensor] = queue.Queue()
        self._made = 0
        self._underway: queue.Queue[_Underway | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._carrier = threading.Thread(target=self._carry, daemon=True)
        self._carrier.start()

    def send(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        """Copy ``rows``, as they are now, to ``targets`` of ``into``; they are there after `close`.

        Args:
            rows: ``[rows, ...]`` on a GPU.
            into: ``[count, ...]`` on the host.
            targets: The index of each row in ``into``.

        Raises:
            BaseException: What made an earlier copy fail.
        """
        if self._failure is not None:
            raise self._failure
        # The copy is still under way when the forward writes again to what the rows are cut from.
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
        """Return pinned memory of at least ``nbytes`` bytes; wait for some if all is in use."""
        if nbytes > _PIECE:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if self._free.empty() and self._made < _PIECES:
            self._made += 1
            return torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
        return self._free.get()

    def _carry(self) -> None:
        """Copy rows from pinned memory into their results as they arrive; runs in the thread."""
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
        """Wait until all rows that were sent are in their results.

        Raises:
            BaseException: What made a copy fail.
        """
        self._underway.put(None)
        self._carrier.join()
        if self._failure is not None:
            raise self._failure


def _part(targets: Tensor | slice, start: int, count: int) -> Tensor | slice:
    """Return ``count`` of ``targets``, from the one at ``start`` on."""
    if isinstance(targets, slice):
        return slice(targets.start + start, targets.start + start + count)
    return targets[start : start + count]
