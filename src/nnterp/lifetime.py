"""Decides who owns a tensor, and for how long; no other module decides it.

A tensor met in a forward is one of three things:

* *live*: it belongs to the engine. Later kernels overwrite it, and on vLLM it holds the rows of
  every request of the step. It may be read until the forward moves on, and nothing else.
* *copied*: it belongs to nobody else. It may be stored, handed out and sent.
* *shared*: it is in memory that a second reader uses as well, another CUDA stream or another
  process. It must not change until that reader is done.

A `Reading` says which of the first two a value is. Code that keeps, sends or hands out a value
takes it as a `Reading` and calls its ``copied()``, so that no two modules can each assume that
the other one copies.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

#: ``torch.inference_mode(False)`` without the overhead of that class. A tensor made in inference
#: mode has no version counter, and in-place edits are detected by that counter. No code under it
#: may wait for the model: the mode is the thread's, and other blocks run on the same thread.
outside_inference_mode = partial(torch._C._InferenceMode, False)


class Reading(NamedTuple):
    """A `Reading` is a value taken out of what arrived at its location.

    Attributes:
        tensor: The value.
        is_new_tensor: Whether reading computed a new tensor. An in-place edit of a new tensor does
            not reach the model by itself, and keeping one needs no copy.
    """

    tensor: Tensor
    is_new_tensor: bool = False

    def copied(self) -> Tensor:
        """Return the value as a tensor that nothing else writes to."""
        return self.tensor if self.is_new_tensor else copied(self.tensor)

    def packed(self) -> Tensor:
        """Return the value as a contiguous tensor that nothing else writes to."""
        if self.is_new_tensor and self.tensor.is_contiguous():
            return self.tensor
        return packed_copy(self.tensor)

    def mapped(self, value: Tensor) -> Reading:
        """Return the reading of ``value``, computed from this tensor or a view of it."""
        alias = torch._C._is_alias_of(value, self.tensor)  # type: ignore[attr-defined]
        return Reading(value, self.is_new_tensor or not alias)


def copied(tensor: Tensor) -> Tensor:
    """Return a copy of the live ``tensor``, laid out alike, that nothing else writes to."""
    return tensor.clone()


def packed_copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of ``tensor`` that nothing else writes to."""
    return tensor.clone(memory_format=torch.contiguous_format)


def share_with_stream(tensor: Tensor, stream: torch.cuda.Stream) -> None:
    """Let ``stream`` read ``tensor``, whose memory is not reused until it has done so.

    The stream first waits for the work queued on the current stream of the tensor's device. Freed
    memory is reused only after the work that ``stream`` has been given by then is done.
    """
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    tensor.record_stream(stream)
