"""Shares result tensors that one process fills and another uses in place."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nnterp.engines.vllm.transport import memory, shared_files
from nnterp.engines.vllm.transport.address import Address
from nnterp.engines.vllm.transport.contents import (
    Contents,
    InMessage,
    InProcess,
)


class SharedBuffer:
    """Holds memory for one tensor that this process fills and another process uses in place.

    Args:
        shape: The tensor's shape.
        dtype: The tensor's dtype.
        to: The address of the process that will use it.

    Attributes:
        tensor: The tensor, to be filled.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, to: Address) -> None:
        self._here = to == Address.own()
        self._shared = to.nearby and not self._here
        if not self._shared:
            self.tensor = torch.empty(*shape, dtype=dtype)
            return
        nbytes = math.prod(shape) * dtype.itemsize
        self._path, mapped = shared_files.create(nbytes, to.number)
        self.tensor = mapped[:nbytes].view(dtype).view(*shape)

    def contents(self) -> Contents:
        """Return what the tensor is sent as; it can be called once."""
        if self._here:
            return InProcess.hand_over([self.tensor])
        if not self._shared:
            return InMessage.write([self.tensor])
        return memory.InFile(self._path, [memory.run_of(self.tensor)], [0])

    def discard(self) -> None:
        """Release the memory, unused."""
        if self._shared:
            os.unlink(self._path)


class Results:
    """Pickles as a mapping from names to tensors on the host, for the process at ``to``.

    Args:
        buffers: The tensors in buffers that were made for that process, by name.
        on_device: The tensors still on a GPU, which that process fetches from there itself.
        to: The address of the process.
    """

    def __init__(
        self, buffers: Mapping[str, SharedBuffer], on_device: Mapping[str, Tensor], to: Address
    ) -> None:
        self._in_buffers = {name: buffer.contents() for name, buffer in buffers.items()}
        self._names = list(on_device)
        self._fetched: Contents | None = None
        if on_device:
            tensors = list(on_device.values())
            here = to == Address.own()
            self._fetched = InProcess.hand_over(tensors) if here else memory.OnDevice.write(tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unload, (self._in_buffers, self._names, self._fetched)


def _unload(
    in_buffers: Mapping[str, Contents], names: list[str], fetched: Contents | None
) -> dict[str, Tensor]:
    """Return all tensors by name, those on a GPU copied to pinned host memory."""
    tensors = {name: contents.take()[0] for name, contents in in_buffers.items()}
    if fetched is not None:
        tensors |= zip(names, memory.to_pinned_host(fetched.take()), strict=True)
    return tensors
