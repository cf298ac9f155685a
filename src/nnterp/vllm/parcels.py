"""How saved values get home from the worker.

Pickle is good at structure and poor at tensors: a few hundred small ones cost more than
the forward that made them. A parcel is the pickled structure with a number in each
tensor's place, and beside it the tensors: as they are, where the engine is in the caller's
process; in memory the two processes share, on one host; inside the message, from another.

Every tensor arrives with storage of its own and on the device it was saved on.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import pickle
import platform
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import memory


class Address(NamedTuple):
    """Where a process is, for another to tell how near it is.

    Attributes:
        process: The process.
        memory: The host and its shared memory, as this process sees them.
    """

    process: str
    memory: str

    @classmethod
    def own(cls) -> Address:
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = boot.read_text().strip() if boot.exists() else platform.node()
        mount = os.stat(memory.SHARED_MEMORY if os.path.isdir(memory.SHARED_MEMORY) else "/").st_dev
        return cls(f"{_process}-{os.getpid()}", f"{host}-{mount}")


#: Told apart from processes of other hosts and containers, whose ids may coincide.
_process = uuid.uuid4().hex


def pack(value: Any, to: Address) -> bytes:
    """``value`` as bytes that ``pickle.loads`` turns back into it, in the process at ``to``.

    Args:
        value: Anything that pickles.
        to: The process that will open it.

    Raises:
        OSError: Nowhere on this host has room for its tensors.
    """
    tensors: list[Tensor] = []
    buffer = io.BytesIO()
    _Structure(buffer, tensors).dump(value)
    own = Address.own()
    contents: _Contents
    if not tensors or to.memory != own.memory:
        contents = _Inline.write(tensors)
    elif to.process == own.process:
        contents = _Here.keep(tensors)
    else:
        contents = _Nearby.write(tensors)
    return pickle.dumps(_Parcel(buffer.getvalue(), contents), pickle.HIGHEST_PROTOCOL)


def rehearse(value: Any) -> None:
    """Raise what `pack` would of a value that cannot travel, and do no more."""
    _Structure(io.BytesIO(), []).dump(value)


class _Parcel:
    """Pickles into a call that opens it."""

    def __init__(self, structure: bytes, contents: _Contents) -> None:
        self._parts = structure, contents

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, self._parts


def _open(structure: bytes, contents: _Contents) -> Any:
    unpickler = _Unpickler(io.BytesIO(structure))
    unpickler.tensors = contents.take()
    return unpickler.load()


class _Structure(pickle.Pickler):
    """Pickles a value with a number in place of each plain tensor."""

    def __init__(self, buffer: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not Tensor or not _is_plain(obj):
            return None
        number = self._numbers.setdefault(id(obj), len(self._tensors))
        if number == len(self._tensors):
            self._tensors.append(obj)
        return number

    def reducer_override(self, obj: Any) -> Any:
        # Any other tensor is torch's to pickle, though without the storage it is a view of.
        strided = isinstance(obj, Tensor) and obj.layout is torch.strided
        if strided and obj.untyped_storage().nbytes() > obj.nbytes:
            return obj.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and (tensor.is_cpu or tensor.is_cuda)
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


class _Contents(Protocol):
    """The tensors of a parcel."""

    def take(self) -> list[Tensor]:
        """The tensors, in order; once."""


class _Unpickler(pickle.Unpickler):
    tensors: Sequence[Tensor]

    def persistent_load(self, number: int) -> Tensor:
        return self.tensors[number]


class _Here(NamedTuple):
    """Tensors that stay in this process; kept as copies, for some are the engine's buffers."""

    key: int

    @classmethod
    def keep(cls, tensors: list[Tensor]) -> _Here:
        return cls.hand_over([tensor.clone() for tensor in tensors])

    @classmethod
    def hand_over(cls, tensors: list[Tensor]) -> _Here:
        key = next(_keys)
        _kept[key] = tensors
        return cls(key)

    def take(self) -> list[Tensor]:
        return _kept.pop(self.key)


_keys = itertools.count()
_kept: dict[int, list[Tensor]] = {}


class _Inline(NamedTuple):
    """Tensors that travel to another host, inside the message.

    Attributes:
        pieces: The bytes of each, its dtype, shape and device.
    """

    pieces: list[tuple[bytes, torch.dtype, torch.Size, str]]

    @classmethod
    def write(cls, tensors: list[Tensor]) -> _Inline:
        return cls([(_bytes(t), t.dtype, t.shape, str(t.device)) for t in tensors])

    def take(self) -> list[Tensor]:
        return [
            torch.frombuffer(bytearray(own), dtype=dtype).view(shape).to(device)
            if own
            else torch.empty(shape, dtype=dtype, device=device)
            for own, dtype, shape, device in self.pieces
        ]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.resolve_conj().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


class _Nearby(NamedTuple):
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
    def write(cls, tensors: list[Tensor]) -> _Nearby:
        device = [tensor.is_cuda for tensor in tensors]
        host = [tensor for tensor in tensors if not tensor.is_cuda]
        cuda = [tensor for tensor in tensors if tensor.is_cuda]
        return cls(
            memory.InFile.write(host) if host else None,
            memory.OnDevice.write(cuda) if cuda else None,
            device,
        )

    def take(self) -> list[Tensor]:
        host = iter(self.on_host.take() if self.on_host else ())
        cuda = iter(self.on_device.take() if self.on_device else ())
        return [next(cuda if on_device else host) for on_device in self.device]


class Tray:
    """Memory for one tensor that is filled here and used, where it lies, by another process.

    Args:
        shape: The tensor's shape.
        dtype: Its dtype.
        to: The process that will use it.

    Attributes:
        tensor: The tensor, to be filled.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, to: Address) -> None:
        own = Address.own()
        self._shared = to.memory == own.memory and to.process != own.process
        self._here = to == own
        if not self._shared:
            self.tensor = torch.empty(*shape, dtype=dtype)
            return
        nbytes = math.prod(shape) * dtype.itemsize
        self._path, mapped = memory.new_file(nbytes)
        self.tensor = mapped[:nbytes].view(dtype).view(*shape)

    def contents(self) -> _Contents:
        """What the tensor travels as; once."""
        if self._here:
            return _Here.hand_over([self.tensor])
        if not self._shared:
            return _Inline.write([self.tensor])
        return memory.InFile(self._path, [memory.run_of(self.tensor)], [0])

    def discard(self) -> None:
        """Give the memory back, unused."""
        if self._shared:
            os.unlink(self._path)


class Delivery:
    """What was put in a tray; it pickles into the tensor, in the process it was made for."""

    def __init__(self, tray: Tray) -> None:
        self._contents = tray.contents()

    def __reduce__(self) -> tuple[Any, ...]:
        return _single, (self._contents,)


def _single(contents: _Contents) -> Tensor:
    return contents.take()[0]
