"""Stores the rows that a `collect` keeps in memory that the caller's process can use as it is.

Results that are neither small nor very large stay on the GPU until the end, when the caller's
process fetches them from there, if it can open the GPU's memory: nothing is faster. The others are
sent as they come, on a CUDA stream of their own, into pinned memory, and a thread copies them on
from there, so that neither the forward nor the launching of it waits. Pinned memory is bounded:
when all of it is in use, the forward's launching waits for some to be free.
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

#: The most bytes that a `collect` keeps on a GPU, and the largest share of what is free there.
_ON_DEVICE_LIMIT = 1 << 30


_ON_DEVICE_SHARE = 1 / 8


class CallersStore(Store):
    """Stores results in memory that the caller's process can use.

    Args:
        caller: The address of that process.
        sees_gpu: Whether that process can open memory of a GPU.
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
        """Return whether a result of ``nbytes`` bytes stays on the GPU, and count it if so."""
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
            # The copy runs in the order of the forward's own kernels.
            into[targets] = rows.tensor
            return
        if self._copier is None:
            self._copier = DeviceToHostCopier()
        self._copier.send(rows, into, targets)

    def deliver(self, results: Mapping[str, Tensor]) -> Results:
        """Return ``results`` for the caller's process, and release the rest of what was made.

        Args:
            results: Results that this store made, by name.
        """
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
        """Release everything."""
        self.deliver({})

    def flush(self) -> None:
        """Wait until all rows that were put are in their results, before any of these is delivered.

        Raises:
            BaseException: What kept some of them from getting there.
        """
        if self._copier is not None:
            copier, self._copier = self._copier, None
            copier.close()
