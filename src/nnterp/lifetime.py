"""Who a tensor belongs to, and for how long: the one place that decides it.

A tensor met in a forward is one of three things:

* *live*: the engine's own. Later kernels overwrite it, and on vLLM it holds the rows of every
  request of the step. It may be looked at until the forward moves on, and nothing else.
* *copied*: nobody else's. It may be stored, handed out and sent.
* *shared*: in memory that a second reader uses as well, another stream of a GPU or another
  process. It has to stay as it is until that reader is done.

A `Reading` says which of the first two a value is. Whatever keeps one, sends one or hands one
out takes it as a `Reading` and asks for its ``copied()``; so no two modules can each take the
copying to be the other's.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

#: ``torch.inference_mode(False)`` without what that class adds. A tensor made in inference
#: mode has no version counter, and the counter is how an in-place edit is seen. Nothing under
#: it may wait for the model: the mode is the thread's, and other blocks run on it.
outside_inference_mode = partial(torch._C._InferenceMode, False)


class Reading(NamedTuple):
    """A value taken out of what arrived at its location.

    Attributes:
        tensor: The value.
        is_new_tensor: Whether reading computed a new tensor. Editing one in place does not
            reach the model by itself; keeping one needs no copy.
    """

    tensor: Tensor
    is_new_tensor: bool = False

    def copied(self) -> Tensor:
        """The value as a tensor that nothing else writes to."""
        return self.tensor if self.is_new_tensor else copied(self.tensor)

    def packed(self) -> Tensor:
        """The same, with its numbers side by side in memory."""
        if self.is_new_tensor and self.tensor.is_contiguous():
            return self.tensor
        return packed_copy(self.tensor)

    def mapped(self, value: Tensor) -> Reading:
        """The reading of ``value``, which was computed from this tensor or is a view of it."""
        alias = torch._C._is_alias_of(value, self.tensor)  # type: ignore[attr-defined]
        return Reading(value, self.is_new_tensor or not alias)


def copied(tensor: Tensor) -> Tensor:
    """``tensor``, live so far, as one that nothing else writes to; laid out as it is."""
    return tensor.clone()


def packed_copy(tensor: Tensor) -> Tensor:
    """``tensor`` as one that nothing else writes to, its numbers side by side."""
    return tensor.clone(memory_format=torch.contiguous_format)


def share_with_stream(tensor: Tensor, stream: torch.cuda.Stream) -> None:
    """Keep the memory of ``tensor`` as it is until ``stream`` has done what it is given now."""
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    tensor.record_stream(stream)
