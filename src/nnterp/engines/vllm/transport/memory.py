"""Memory that two processes of a host share.

On the host it is a file of memory that both map: what one writes the other uses where it
lies. On a GPU one process lets the other into an allocation of its own, for as long as it
takes to copy it. Tensors go side by side, since many small copies cost more than their bytes.
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

#: Tensors from this size on are used where they arrived instead of copied out.
_IN_PLACE_FROM = 1 << 20

#: Up to this size a GPU's tensors travel by way of the host: to let another process into
#: the memory of a GPU takes longer.
MODERATE = 1 << 20


class _Run(NamedTuple):
    """Tensors of one dtype that lie one after another.

    Attributes:
        start: Where in the file, in bytes.
        nbytes: How long it is.
        dtype: Their dtype.
        shapes: The shape of each.
    """

    start: int
    nbytes: int
    dtype: torch.dtype
    shapes: list[torch.Size]


class InFile(NamedTuple):
    """Tensors of the host in a file of memory.

    Attributes:
        path: The file; who opens it removes it, and its memory lasts as long as its tensors.
        runs: What lies in it.
        order: For each tensor its place over all runs.
    """

    path: str
    runs: list[_Run]
    order: list[int]

    @classmethod
    def write(cls, tensors: Sequence[Tensor], reader: int) -> InFile:
        """``tensors`` for the process ``reader``.

        Raises:
            OSError: Nowhere has room.
        """
        grouped: dict[Any, list[int]] = {}
        for number, tensor in enumerate(tensors):
            # A large one has a run to itself, so as to keep alive no other.
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
        with open(self.path, "r+b") as file:
            os.unlink(self.path)
            arrived = [tensor for run in self.runs for tensor in _read(file.fileno(), run)]
        return [arrived[place] for place in self.order]


def _read(file: int, run: _Run) -> Iterator[Tensor]:
    if not run.nbytes:
        return (torch.empty(shape, dtype=run.dtype) for shape in run.shapes)
    mapped = mmap.mmap(file, run.nbytes, access=mmap.ACCESS_COPY, offset=run.start)
    flat = torch.frombuffer(mapped, dtype=run.dtype)
    if len(run.shapes) == 1:
        return iter([flat.view(run.shapes[0])])
    return (copied(piece) for piece in _pieces(flat, run.shapes))


def _pieces(flat: Tensor, shapes: Sequence[torch.Size]) -> Iterator[Tensor]:
    return itertools.chain.from_iterable(stacked.unbind() for stacked, _ in _alike(flat, shapes))


def _alike(flat: Tensor, shapes: Sequence[torch.Size]) -> Iterator[tuple[Tensor, slice]]:
    """The parts of ``flat`` of one shape, each ``[tensors, ...]``, and which tensors those are.

    One call for many small tensors takes a fraction of the time of as many calls.
    """
    first = start = 0
    for shape, members in itertools.groupby(shapes):
        count = sum(1 for _ in members)
        end = start + count * shape.numel()
        yield flat[start:end].view(count, *shape), slice(first, first + count)
        first, start = first + count, end


def _places(groups: Any, count: int) -> list[int]:
    """For each of ``count`` numbers its place in ``groups``, one group after another."""
    places = [0] * count
    for place, number in enumerate(number for members in groups for number in members):
        places[number] = place
    return places


class OnDevice(NamedTuple):
    """Tensors in allocations of a GPU that the other process is let into.

    Attributes:
        runs: For each dtype and device, the way to open the allocation, or for a small one to
            make it anew, and the shapes of the tensors in it.
        order: For each tensor its place over all runs.
    """

    runs: list[tuple[Callable[..., Tensor], tuple[Any, ...], list[torch.Size]]]
    order: list[int]

    @classmethod
    def write(cls, tensors: Sequence[Tensor]) -> OnDevice:
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
        arrived: list[Tensor] = []
        for rebuild, arguments, shapes in self.runs:
            flat = rebuild(*arguments)
            arrived += [copied(piece) for piece in _pieces(flat, shapes)]
            # The allocation is the other process's again once it is let go of here.
            torch.cuda.current_stream(flat.device).synchronize()
        return [arrived[place] for place in self.order]


def host_bytes(tensor: Tensor) -> bytes:
    """The numbers of ``tensor``, wherever it is."""
    return tensor.resolve_conj().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _upload(numbers: bytes, dtype: torch.dtype, device: str) -> Tensor:
    return torch.frombuffer(bytearray(numbers), dtype=dtype).to(device)


def to_pinned_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of a GPU's tensors on the host, in pinned memory, which a GPU writes fastest."""
    pinned = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
            tensor, non_blocking=True
        )
        for tensor in tensors
    ]
    torch.cuda.synchronize()
    return pinned


def run_of(tensor: Tensor) -> _Run:
    """A run of one tensor, at the start of its file."""
    return _Run(0, tensor.nbytes, tensor.dtype, [tensor.shape])
