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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import memory, shared_files


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
        """The address of the calling process."""
        return cls._of(os.getpid())

    @classmethod
    @cache
    def _of(cls, process: int) -> Address:
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = boot.read_text().strip() if boot.exists() else platform.node()
        shared = shared_files.SHARED_MEMORY
        mount = os.stat(shared if os.path.isdir(shared) else "/").st_dev
        return cls(f"{_process}-{process}", f"{host}-{mount}")

    @property
    def number(self) -> int:
        """What its host calls the process."""
        return int(self.process.rpartition("-")[2])

    @property
    def nearby(self) -> bool:
        """Whether it is on this process's host, and shares its memory."""
        return self.memory == Address.own().memory


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
    return pickle.dumps(_parcel(value, to), pickle.HIGHEST_PROTOCOL)


def pack_each(
    values: Mapping[str, Any], to: Address, instead: Callable[[Any, Exception], Any]
) -> bytes:
    """``values`` by name, as `pack` would, each apart so that one without room is no other's.

    Args:
        values: The values.
        to: The process that will open them.
        instead: What to send for one that cannot be packed, given that and what went wrong.
    """
    parcels = {}
    for name, value in values.items():
        try:
            parcels[name] = _parcel(value, to)
        except Exception as error:  # told to the one whose it is
            parcels[name] = _parcel(instead(value, error), to)
    return pickle.dumps(parcels, pickle.HIGHEST_PROTOCOL)


def hold(value: Any) -> bytes:
    """``value`` itself, as bytes that ``pickle.loads`` turns into it, once, in this process."""
    return pickle.dumps(_Held(value), pickle.HIGHEST_PROTOCOL)


def _parcel(value: Any, to: Address) -> _Parcel:
    tensors: list[Tensor] = []
    buffer = io.BytesIO()
    _Structure(buffer, tensors).dump(value)
    own = Address.own()
    contents: _Contents
    if not tensors or not to.nearby:
        contents = _Inline.write(tensors)
    elif to.process == own.process:
        contents = _Here.keep(tensors)
    else:
        contents = _Nearby.write(tensors, to.number)
    return _Parcel(buffer.getvalue(), contents)


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
        return cls(_hold(tensors))

    def take(self) -> list[Tensor]:
        return _release(self.key)


class _Held:
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


class _Inline(NamedTuple):
    """Tensors that travel to another host, inside the message.

    Attributes:
        pieces: The bytes of each, its dtype, shape and device.
    """

    pieces: list[tuple[bytes, torch.dtype, torch.Size, str]]

    @classmethod
    def write(cls, tensors: list[Tensor]) -> _Inline:
        return cls([(memory.host_bytes(t), t.dtype, t.shape, str(t.device)) for t in tensors])

    def take(self) -> list[Tensor]:
        return [
            torch.frombuffer(bytearray(own), dtype=dtype).view(shape).to(device)
            if own
            else torch.empty(shape, dtype=dtype, device=device)
            for own, dtype, shape, device in self.pieces
        ]


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
    def write(cls, tensors: list[Tensor], reader: int) -> _Nearby:
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
        self._here = to == Address.own()
        self._shared = to.nearby and not self._here
        if not self._shared:
            self.tensor = torch.empty(*shape, dtype=dtype)
            return
        nbytes = math.prod(shape) * dtype.itemsize
        self._path, mapped = shared_files.create(nbytes, to.number)
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
    """Tensors by name; it pickles into them, on the host, in the process at ``to``.

    Args:
        trays: Those that were put in trays made for that process.
        on_device: Those still on a GPU, which that process fetches from there itself.
        to: The process.
    """

    def __init__(
        self, trays: Mapping[str, Tray], on_device: Mapping[str, Tensor], to: Address
    ) -> None:
        self._in_trays = {name: tray.contents() for name, tray in trays.items()}
        self._names = list(on_device)
        self._fetched: _Contents | None = None
        if on_device:
            tensors = list(on_device.values())
            here = to == Address.own()
            self._fetched = _Here.hand_over(tensors) if here else memory.OnDevice.write(tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unload, (self._in_trays, self._names, self._fetched)


def _unload(
    in_trays: Mapping[str, _Contents], names: list[str], fetched: _Contents | None
) -> dict[str, Tensor]:
    tensors = {name: contents.take()[0] for name, contents in in_trays.items()}
    if fetched is not None:
        tensors |= zip(names, memory.land(fetched.take()), strict=True)
    return tensors
