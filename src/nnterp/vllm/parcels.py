"""How saved values get home from the worker.

Pickle is good at structure and poor at tensors: a few hundred small ones cost more than
the forward that made them. A parcel is the pickled structure with a number in each
tensor's place, and beside it the tensors, laid out by dtype in one buffer: the one process
they never left, where the engine is in the caller's; or memory the two processes share.

Every tensor arrives with storage of its own and on the device it was saved on.
"""

from __future__ import annotations

import io
import itertools
import math
import mmap
import os
import pickle
import platform
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from nnsight.modeling.vllm.collect import dumps_compact
from torch import Tensor

from .outward import write_out

#: Tensors from this size on are used where they arrived instead of copied out.
_IN_PLACE_FROM = 1 << 20


#: Where memory is a file.
SHARED_MEMORY = "/dev/shm"


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
        mount = os.stat(SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else "/").st_dev
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
        contents = _Shared.write(tensors)
    return pickle.dumps(_Parcel(buffer.getvalue(), contents), pickle.HIGHEST_PROTOCOL)


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
        if isinstance(obj, Tensor) and obj.untyped_storage().nbytes() > obj.nbytes:
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
    """Tensors that travel to another host, inside the message."""

    pickled: bytes

    @classmethod
    def write(cls, tensors: list[Tensor]) -> _Inline:
        return cls(dumps_compact(tensors))

    def take(self) -> list[Tensor]:
        return pickle.loads(self.pickled)


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
        self._path, mapped = _new_file(nbytes)
        self.tensor = mapped[:nbytes].view(dtype).view(*shape)

    def contents(self) -> _Contents:
        """What the tensor travels as; once."""
        if self._here:
            return _Here.hand_over([self.tensor])
        if not self._shared:
            return _Inline.write([self.tensor])
        run = _Run(0, self.tensor.nbytes, self.tensor.dtype, "cpu", [self.tensor.shape])
        return _Shared(self._path, [run], [0])

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


class _Run(NamedTuple):
    """Tensors of one dtype and device that lie one after another.

    Attributes:
        start: Where in the file, in bytes.
        nbytes: How long it is.
        dtype: Their dtype.
        device: The device they were saved on.
        shapes: The shape of each.
    """

    start: int
    nbytes: int
    dtype: torch.dtype
    device: str
    shapes: list[torch.Size]


class _Shared(NamedTuple):
    """Tensors in a file of memory that both processes can map.

    Attributes:
        path: The file; who opens it removes it, and its memory lasts as long as its tensors.
        runs: What lies in it.
        order: For each tensor, in the order they are numbered, its place over all runs.
    """

    path: str
    runs: list[_Run]
    order: list[int]

    @classmethod
    def write(cls, tensors: list[Tensor]) -> _Shared:
        runs, members, nbytes = _lay_out(tensors)
        order = [0] * len(tensors)
        for place, number in enumerate(number for run in members for number in run):
            order[number] = place
        path, memory = _new_file(nbytes)
        for run, numbers in zip(runs, members, strict=True):
            into = memory[run.start : run.start + run.nbytes]
            write_out([tensors[number] for number in numbers], into)
        return cls(path, runs, order)

    def take(self) -> list[Tensor]:
        with open(self.path, "r+b") as file:
            os.unlink(self.path)
            arrived = [tensor for run in self.runs for tensor in self._read(file.fileno(), run)]
        return [arrived[place] for place in self.order]

    def _read(self, file: int, run: _Run) -> list[Tensor]:
        if not run.nbytes:
            return [torch.empty(shape, dtype=run.dtype, device=run.device) for shape in run.shapes]
        # A mapping of its own for each run, so that a large tensor keeps alive no other.
        mapped = mmap.mmap(file, run.nbytes, access=mmap.ACCESS_COPY, offset=run.start)
        flat = torch.frombuffer(mapped, dtype=run.dtype)
        pieces = flat.split([shape.numel() for shape in run.shapes])
        if run.device != "cpu":
            return [
                p.to(run.device).view(shape) for p, shape in zip(pieces, run.shapes, strict=True)
            ]
        if len(run.shapes) == 1:
            return [flat.view(run.shapes[0])]
        return [p.view(shape).clone() for p, shape in zip(pieces, run.shapes, strict=True)]


def _lay_out(tensors: list[Tensor]) -> tuple[list[_Run], list[list[int]], int]:
    """Runs for ``tensors``, the numbers of the tensors in each, and the size they take.

    Small ones share a run with their like; a large one has a run to itself.
    """
    grouped: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        alone = number if tensor.nbytes >= _IN_PLACE_FROM else None
        grouped.setdefault((tensor.dtype, str(tensor.device), alone), []).append(number)
    runs: list[_Run] = []
    end = 0
    for (dtype, device, _), numbers in grouped.items():
        start = -(-end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        nbytes = sum(tensors[number].nbytes for number in numbers)
        end = start + nbytes
        runs.append(_Run(start, nbytes, dtype, device, [tensors[n].shape for n in numbers]))
    return runs, list(grouped.values()), end


def _new_file(nbytes: int) -> tuple[str, Tensor]:
    """A new file of shared memory, and its bytes."""
    size = max(nbytes, 1)  # a mapping cannot be empty
    folder = _directory_for(size)
    with tempfile.NamedTemporaryFile(prefix="nnterp-", dir=folder, delete=False) as file:
        file.truncate(size)
        return file.name, torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)


def _directory_for(nbytes: int) -> str:
    """A folder of memory, or failing that of disk, with room for ``nbytes``."""
    for folder in (SHARED_MEMORY, tempfile.gettempdir()):
        if os.path.isdir(folder):
            room = os.statvfs(folder)
            if room.f_bavail * room.f_frsize > nbytes:
                return folder
    raise OSError(
        f"{nbytes / 1e9:.1f} GB of saved values have no room in {SHARED_MEMORY} or "
        f"{tempfile.gettempdir()}; save less in one trace, or set TMPDIR to a larger folder"
    )
