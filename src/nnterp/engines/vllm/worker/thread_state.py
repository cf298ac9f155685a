"""Switches what torch keeps for a thread between a block's own and the forward's.

Gradient mode, autocast, the default dtype and contexts such as ``with torch.device(...)`` belong to
a thread. Blocks and the forward share one and take turns on it, and a block can wait for the model
inside any of them, so each turn starts with its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import get_autocast_dtype, get_default_dtype, is_autocast_enabled, is_grad_enabled
from torch._C import _is_any_autocast_enabled
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode

#: Gradient mode, the default dtype, whether autocast is on for CPU and GPU (None for neither), its
#: dtype on each, and the number of contexts entered.
State = tuple[bool, torch.dtype, tuple[bool, bool] | None, torch.dtype, torch.dtype, int]


def thread_state() -> State:
    """Return the thread's state now, as a bare tuple, for it is asked for twice a turn."""
    return (
        is_grad_enabled(),
        get_default_dtype(),
        (is_autocast_enabled("cpu"), is_autocast_enabled("cuda"))
        if _is_any_autocast_enabled()
        else None,
        get_autocast_dtype("cpu"),
        get_autocast_dtype("cuda"),
        _len_torch_function_stack(),
    )


def restore(wanted: State) -> None:
    """Set the thread's state to ``wanted``, except for the contexts."""
    grad, dtype, autocast, cpu_dtype, cuda_dtype, _ = wanted
    on_cpu, on_cuda = autocast or (False, False)
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    torch.set_autocast_enabled("cpu", on_cpu)
    torch.set_autocast_dtype("cpu", cpu_dtype)
    torch.set_autocast_enabled("cuda", on_cuda)
    torch.set_autocast_dtype("cuda", cuda_dtype)


class Turn:
    """Keeps a block's own thread state, which is set for its turns and not between them."""

    def __init__(self) -> None:
        self._own: State | None = None
        self._modes: list[Any] = []
        self._outer: State

    def begin(self, outer: State) -> None:
        """Set the block's own state in place of the forward's, which is ``outer``."""
        self._outer = outer
        if self._own is not None:
            restore(self._own)
            self._own = None
            while self._modes:
                _push_mode(self._modes.pop())

    def end(self) -> None:
        """Restore the forward's state, and keep the block's own if it is different."""
        own = thread_state()
        if own != self._outer:
            self._modes = [_pop_mode() for _ in range(own[-1] - self._outer[-1])]
            self._own = own
            restore(self._outer)
