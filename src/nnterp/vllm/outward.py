"""Tensors out of the engine and into memory of the host, in bulk.

Many small copies cost more than their bytes, so tensors go side by side in one operation. From
a GPU they pass through pinned memory, which its copy engine fills while the processor
empties what was filled before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: The pinned memory a transfer passes through, in bytes; there are two of these.
_STAGE = 32 << 20


def write_out(tensors: Sequence[Tensor], into: Tensor) -> None:
    """Write ``tensors``, all of one dtype and device, one after another.

    Args:
        tensors: What to write.
        into: ``[bytes]``, uint8 on the host, of their size together.
    """
    if not len(into):
        return
    target = into.view(tensors[0].dtype)
    flat = [tensor.reshape(-1) for tensor in tensors]
    if tensors[0].device.type == "cpu":
        torch.cat(flat, out=target)
    else:
        _through_pinned(flat[0] if len(flat) == 1 else torch.cat(flat), target)


def _through_pinned(source: Tensor, target: Tensor) -> None:
    """Copy ``source``, flat on a GPU, to ``target``, flat on the host."""
    count = min(_STAGE // source.element_size(), source.numel())
    starts = range(0, source.numel(), count)
    stages = [
        torch.empty(count, dtype=source.dtype, pin_memory=True) for _ in range(min(2, len(starts)))
    ]
    filled = [torch.cuda.Event() for _ in stages]

    def fill(index: int) -> None:
        if index < len(starts):
            piece = source[starts[index] : starts[index] + count]
            stages[index % 2][: piece.numel()].copy_(piece, non_blocking=True)
            filled[index % 2].record()

    fill(0)
    for index, start in enumerate(starts):
        fill(index + 1)
        filled[index % 2].synchronize()
        piece = target[start : start + count]
        piece.copy_(stages[index % 2][: piece.numel()])
