"""Where the rows that a `collect` keeps go: memory that the caller's process uses as it is.

Results that are neither small nor very large stay on the GPU until the end, when the caller's
process fetches them from there: nothing is faster. The others leave as they come, on a stream
of their own, into pinned memory, and a thread carries them on from there, so that neither the
forward nor the launching of it waits. Pinned memory is bounded: when all of it is on its way,
the forward's launching waits for some to be free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nnterp.collecting.gather import Store
from nnterp.engines.vllm.transport.address import Address
from nnterp.engines.vllm.transport.memory import MODERATE
from nnterp.engines.vllm.transport.results import Results, SharedBuffer
from nnterp.engines.vllm.worker.device_copier import DeviceToHostCopier
from nnterp.lifetime import Reading, outside_inference_mode

#: What a `collect` keeps on a GPU at most, in bytes, and of what is free there the share.
_ON_DEVICE_LIMIT = 1 << 30


_ON_DEVICE_SHARE = 1 / 8


class CallersStore(Store):
    """Results in memory that the caller can use.

    Args:
        caller: The process that will.
        sees_gpu: Whether that process can be let into a GPU's memory.
    """

    def __init__(self, caller: Address, sees_gpu: bool) -> None:
        self._caller = caller
        self._fetches = sees_gpu and caller.nearby
        self._buffers: list[SharedBuffer] = []
        self._on_device = 0
        self._copier: DeviceToHostCopier | None = None

    def make(self, count: int, rows: Tensor) -> Tensor:
        shape = count, *rows.shape[1:]
        # The caller may want gradients, which a tensor made in inference mode cannot have.
        with outside_inference_mode():
            if rows.is_cuda and self._fits(math.prod(shape) * rows.itemsize):
                return torch.empty(shape, dtype=rows.dtype, device=rows.device)
            buffer = SharedBuffer(shape, rows.dtype, self._caller)
        self._buffers.append(buffer)
        return buffer.tensor

    def _fits(self, nbytes: int) -> bool:
        """Whether a result of this size stays on the GPU; it is taken into account if so."""
        kept = self._on_device + nbytes
        if not self._fetches or nbytes <= MODERATE or kept > _ON_DEVICE_LIMIT:
            return False
        free, _ = torch.cuda.mem_get_info()
        if kept > _ON_DEVICE_SHARE * free:
            return False
        self._on_device = kept
        return True

    def put(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        if into.is_cuda and isinstance(targets, Tensor):
            targets = targets.to(into.device, non_blocking=True)
        if into.device == rows.tensor.device:
            # In the order of the forward's own kernels.
            into[targets] = rows.tensor
            return
        if self._copier is None:
            self._copier = DeviceToHostCopier()
        self._copier.send(rows, into, targets)

    def deliver(self, results: Mapping[str, Tensor]) -> Results:
        """``results``, of those this store made, for the caller's process; the rest is let go."""
        buffers = {id(buffer.tensor): buffer for buffer in self._buffers}
        self._buffers.clear()
        on_device = {name: own for name, own in results.items() if own.is_cuda}
        in_buffers = {
            name: buffers.pop(id(own)) for name, own in results.items() if name not in on_device
        }
        for buffer in buffers.values():
            buffer.discard()
        return Results(in_buffers, on_device, self._caller)

    def discard(self) -> None:
        """Let go of everything."""
        self.deliver({})

    def flush(self) -> None:
        """Wait until everything that was put is there, before any of it is delivered.

        Raises:
            BaseException: What kept some of it from getting there.
        """
        if self._copier is not None:
            copier, self._copier = self._copier, None
            copier.close()
