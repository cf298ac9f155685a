"""Carries the tensors of a packed value: in this process, in shared memory or in the message.

Tensors stay in this process where its reader is the same process; they are in shared memory for
another process of the host; and they are inside the message for another host.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nnterp.engines.vllm.transport import memory
from nnterp.lifetime import copied


class Contents(Protocol):
    """Carries the tensors of a packed value to the process that opens it."""

    def take(self) -> list[Tensor]:
        """Return the tensors, in order; it can be called once."""


class InProcess(NamedTuple):
    """Keeps tensors in this process, and is pickled as the key to them.

    Attributes:
        key: The key that the tensors are kept under.
    """

    key: int

    @classmethod
    def keep(cls, tensors: list[Tensor]) -> InProcess:
        """Keep copies of ``tensors``, for some are the engine's buffers."""
        return cls.hand_over([copied(tensor) for tensor in tensors])

    @classmethod
    def hand_over(cls, tensors: list[Tensor]) -> InProcess:
        """Keep ``tensors`` themselves, not copies."""
        return cls(_hold(tensors))

    def take(self) -> list[Tensor]:
        return _release(self.key)


class HeldHere:
    """Pickles as a call that releases a value held in this process.

    Args:
        value: The value, which is held from when this is pickled until it is unpickled.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _release, (_hold(self._value),)


_keys = itertools.count()


_kept: dict[int, Any] = {}


def _hold(value: Any) -> int:
    """Keep ``value`` in this process, and return its key."""
    key = next(_keys)
    _kept[key] = value
    return key


def _release(key: int) -> Any:
    """Return the value that is kept under ``key``, and forget it."""
    return _kept.pop(key)


class InMessage(NamedTuple):
    """Carries tensors to another host, inside the message.

    Attributes:
        pieces: The bytes of each tensor, its dtype, shape and device.
    """

    pieces: list[tuple[bytes, torch.dtype, torch.Size, str]]

    @classmethod
    def write(cls, tensors: list[Tensor]) -> InMessage:
        """Copy the bytes of ``tensors`` into a message."""
        return cls([(memory.host_bytes(t), t.dtype, t.shape, str(t.device)) for t in tensors])

    def take(self) -> list[Tensor]:
        return [
            torch.frombuffer(bytearray(own), dtype=dtype).view(shape).to(device)
            if own
            else torch.empty(shape, dtype=dtype, device=device)
            for own, dtype, shape, device in self.pieces
        ]


class OnHost(NamedTuple):
    """Carries tensors to another process of this host.

    Attributes:
        on_host: The tensors that are in host memory.
        on_device: The tensors that are on a GPU.
        device: For each tensor, whether it is on a GPU.
    """

    on_host: memory.InFile | None
    on_device: memory.OnDevice | None
    device: list[bool]

    @classmethod
    def write(cls, tensors: list[Tensor], reader: int) -> OnHost:
        """Copy ``tensors`` to where the process with id ``reader`` can take them."""
        device = [tensor.is_cuda for tensor in tensors]
        host = [tensor for tensor in tensors if not tensor.is_cuda]
        cuda = [tensor for tensor in tensors if tensor.is_cuda]
        on_host = memory.InFile.write(host, reader) if host else None
        try:
            on_device = memory.OnDevice.write(cuda) if cuda else None
        except BaseException:
            if on_host is not None:
                os.unlink(on_host.path)
            raise
        return cls(on_host, on_device, device)

    def take(self) -> list[Tensor]:
        host = iter(self.on_host.take() if self.on_host else ())
        cuda = iter(self.on_device.take() if self.on_device else ())
        return [next(cuda if on_device else host) for on_device in self.device]
