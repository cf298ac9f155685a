"""Where the tensors of a packed value travel: in this process, in memory shared on one host, or
inside the message."""

from __future__ import annotations

import itertools
import os
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nnterp.engines.vllm.transport import memory
from nnterp.lifetime import copied


class Contents(Protocol):
    """The tensors of a packed value."""

    def take(self) -> list[Tensor]:
        """The tensors, in order; once."""


class InProcess(NamedTuple):
    """Tensors that stay in this process; kept as copies, for some are the engine's buffers."""

    key: int

    @classmethod
    def keep(cls, tensors: list[Tensor]) -> InProcess:
        return cls.hand_over([copied(tensor) for tensor in tensors])

    @classmethod
    def hand_over(cls, tensors: list[Tensor]) -> InProcess:
        return cls(_hold(tensors))

    def take(self) -> list[Tensor]:
        return _release(self.key)


class HeldHere:
    """Pickles into a call that releases a value of this process."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _release, (_hold(self._value),)


_keys = itertools.count()


_kept: dict[int, Any] = {}


def _hold(value: Any) -> int:
    key = next(_keys)
    _kept[key] = value
    return key


def _release(key: int) -> Any:
    return _kept.pop(key)


class InMessage(NamedTuple):
    """Tensors that travel to another host, inside the message.

    Attributes:
        pieces: The bytes of each, its dtype, shape and device.
    """

    pieces: list[tuple[bytes, torch.dtype, torch.Size, str]]

    @classmethod
    def write(cls, tensors: list[Tensor]) -> InMessage:
        return cls([(memory.host_bytes(t), t.dtype, t.shape, str(t.device)) for t in tensors])

    def take(self) -> list[Tensor]:
        return [
            torch.frombuffer(bytearray(own), dtype=dtype).view(shape).to(device)
            if own
            else torch.empty(shape, dtype=dtype, device=device)
            for own, dtype, shape, device in self.pieces
        ]


class OnHost(NamedTuple):
    """Tensors for another process of this host.

    Attributes:
        on_host: Those in its memory.
        on_device: Those on a GPU.
        device: For each tensor, whether it is on a GPU.
    """

    on_host: memory.InFile | None
    on_device: memory.OnDevice | None
    device: list[bool]

    @classmethod
    def write(cls, tensors: list[Tensor], reader: int) -> OnHost:
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
