"""Shares memory between two processes of a host, to pass tensors from one to the other.

In host memory it is a file in shared memory that both processes map: large tensors are used where
they lie, and small ones that lie together are copied out. On a GPU the writer lets the reader open
an allocation of its own, by CUDA IPC, for as long as it takes to copy it. Tensors are laid side by
side, since many small copies cost more than their bytes.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from nnterp.engines.vllm.transport import shared_files
from nnterp.lifetime import copied

#: Tensors of this many bytes or more are used where they arrived instead of copied out.
_IN_PLACE_FROM = 1 << 20

#: Up to this many bytes, a GPU's tensors are sent by way of host memory: to let another process
#: open the memory of a GPU takes longer.
MODERATE = 1 << 20


class _Run(NamedTuple):
    """Describes tensors of one dtype that lie one after another in a file.

    Attributes:
        start: The offset of the first in the file, in bytes.
        nbytes: The length of all together, in bytes.
        dtype: Their dtype.
        shapes: The shape of each.
    """

    start: int
    nbytes: int
    dtype: torch.dtype
    shapes: list[torch.Size]


class InFile(NamedTuple):
    """Carries tensors of the host in a file in shared memory.

    Attributes:
        path: The file. The process that opens it removes it, and its memory lasts as long as its
            tensors.
        runs: The runs of tensors in it.
        order: For each tensor its index over all runs.
    """

    path: str
    runs: list[_Run]
    order: list[int]

    @classmethod
    def write(cls, tensors: Sequence[Tensor], reader: int) -> InFile:
        """Write ``tensors`` to a file for the process with id ``reader``.

        Raises:
            OSError: No folder has room.
        """
        grouped: dict[Any, list[int]] = {}
        for number, tensor in enumerate(tensors):
            # A large tensor has a run to itself, so that it keeps no other alive.
            alone = number if tensor.nbytes >= _IN_PLACE_FROM else None
            grouped.setdefault((tensor.dtype, alone), []).append(number)
        runs: list[_Run] = []
        end = 0
        for (dtype, _), members in grouped.items():
            start = -(-end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            end = start + sum(tensors[number].nbytes for number in members)
            runs.append(_Run(start, end - start, dtype, [tensors[n].shape for n in members]))
        path, memory = shared_files.create(end, reader)
        for run, members in zip(runs, grouped.values(), strict=True):
            if run.nbytes:
                into = memory[run.start : run.start + run.nbytes].view(run.dtype)
                for stacked, alike in _alike(into, run.shapes):
                    torch.stack([tensors[number] for number in members[alike]], out=stacked)
        return cls(path, runs, _places(grouped.values(), len(tensors)))

    def take(self) -> list[Tensor]:
        """Return the tensors, and remove the file."""
        with open(self.path, "r+b") as file:
            os.unlink(self.path)
            arrived = [tensor for run in self.runs for tensor in _read(file.fileno(), run)]
        return [arrived[place] for place in self.order]


def _read(file: int, run: _Run) -> Iterator[Tensor]:
    """Yield the tensors of ``run``: one that is alone in place, several as copies."""
    if not run.nbytes:
        return (torch.empty(shape, dtype=run.dtype) for shape in run.shapes)
    mapped = mmap.mmap(file, run.nbytes, access=mmap.ACCESS_COPY, offset=run.start)
    flat = torch.frombuffer(mapped, dtype=run.dtype)
    if len(run.shapes) == 1:
        return iter([flat.view(run.shapes[0])])
    return (copied(piece) for piece in _pieces(flat, run.shapes))


def _pieces(flat: Tensor, shapes: Sequence[torch.Size]) -> Iterator[Tensor]:
    """Yield the tensors of these ``shapes`` that lie one after another in ``flat``."""
    return itertools.chain.from_iterable(stacked.unbind() for stacked, _ in _alike(flat, shapes))


def _alike(flat: Tensor, shapes: Sequence[torch.Size]) -> Iterator[tuple[Tensor, slice]]:
    """Yield the parts of ``flat`` of one shape, ``[tensors, ...]``, and which tensors those are.

    One call for many small tensors takes a fraction of the time of as many calls.

    Args:
        flat: ``[elements]``, in which the tensors lie one after another.
        shapes: The shape of each tensor.
    """
    first = start = 0
    for shape, members in itertools.groupby(shapes):
        count = sum(1 for _ in members)
        end = start + count * shape.numel()
        yield flat[start:end].view(count, *shape), slice(first, first + count)
        first, start = first + count, end


def _places(groups: Any, count: int) -> list[int]:
    """Return for each of ``count`` numbers its index in the concatenation of ``groups``."""
    places = [0] * count
    for place, number in enumerate(number for members in groups for number in members):
        places[number] = place
    return places


class OnDevice(NamedTuple):
    """Carries tensors in allocations of a GPU that the other process can open.

    Attributes:
        runs: For each dtype and device, the function that opens the allocation, or for a small one
            makes it anew; its arguments; and the shapes of the tensors in it.
        order: For each tensor its index over all runs.
    """

    runs: list[tuple[Callable[..., Tensor], tuple[Any, ...], list[torch.Size]]]
    order: list[int]

    @classmethod
    def write(cls, tensors: Sequence[Tensor]) -> OnDevice:
        """Copy ``tensors`` to one allocation for each dtype and device."""
        grouped: dict[Any, list[int]] = {}
        for number, tensor in enumerate(tensors):
            grouped.setdefault((tensor.dtype, tensor.device), []).append(number)
        runs: list[tuple[Callable[..., Tensor], tuple[Any, ...], list[torch.Size]]] = []
        for members in grouped.values():
            flat = torch.cat([tensors[number].reshape(-1) for number in members])
            if 0 < flat.nbytes <= MODERATE:
                rebuild, arguments = _upload, (host_bytes(flat), flat.dtype, str(flat.device))
            else:
                rebuild, arguments = reduce_tensor(flat)
            runs.append((rebuild, arguments, [tensors[number].shape for number in members]))
        return cls(runs, _places(grouped.values(), len(tensors)))

    def take(self) -> list[Tensor]:
        """Return copies of the tensors that are the calling process's own."""
        arrived: list[Tensor] = []
        for rebuild, arguments, shapes in self.runs:
            flat = rebuild(*arguments)
            arrived += [copied(piece) for piece in _pieces(flat, shapes)]
            # The allocation is the writer's again once it is released here, so the copies must be
            # complete.
            torch.cuda.current_stream(flat.device).synchronize()
        return [arrived[place] for place in self.order]


def host_bytes(tensor: Tensor) -> bytes:
    """Return the elements of ``tensor`` as bytes, from any device."""
    return tensor.resolve_conj().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _upload(numbers: bytes, dtype: torch.dtype, device: str) -> Tensor:
    """Return the elements in ``numbers`` as a tensor on ``device``, ``[elements]``."""
    return torch.frombuffer(bytearray(numbers), dtype=dtype).to(device)


def to_pinned_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy a GPU's tensors to pinned host memory, which a GPU writes fastest, and wait for it."""
    pinned = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
            tensor, non_blocking=True
        )
        for tensor in tensors
    ]
    torch.cuda.synchronize()
    return pinned


def run_of(tensor: Tensor) -> _Run:
    """Return a run of one tensor, at the start of its file."""
    return _Run(0, tensor.nbytes, tensor.dtype, [tensor.shape])
