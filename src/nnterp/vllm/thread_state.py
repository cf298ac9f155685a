"""What torch keeps for the thread rather than for the code that set it.

Gradient mode, autocast, the default dtype and contexts such as ``with torch.device(...)``
belong to a thread. Blocks and the forward share one and take turns on it, and a block can
wait for the model inside any of them, so each turn starts with its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class ThreadState:
    """The thread's switches at one moment.

    Attributes:
        grad: Whether gradients are recorded.
        dtype: The dtype of a tensor that is given none.
        autocast: For each kind of device, whether autocast is on and to what.
        modes: How many contexts, such as default devices, are entered.
    """

    grad: bool
    dtype: torch.dtype
    autocast: tuple[tuple[bool, torch.dtype], ...]
    modes: int

    @classmethod
    def now(cls) -> ThreadState:
        return cls(
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
            _len_torch_function_stack(),
        )

    def switch(self) -> None:
        """Set the thread's switches to these, all but the contexts."""
        torch.set_grad_enabled(self.grad)
        torch.set_default_dtype(self.dtype)
        for device, (enabled, dtype) in zip(_DEVICES, self.autocast, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


class Turn:
    """A block's own thread state, put on for its turns and off between them."""

    def __init__(self) -> None:
        self._own: ThreadState | None = None
        self._modes: list[Any] = []
        self._outer: ThreadState | None = None

    def __enter__(self) -> None:
        self._outer = ThreadState.now()
        if self._own is not None:
            self._own.switch()
        while self._modes:
            _push_mode(self._modes.pop())

    def __exit__(self, *exception: object) -> None:
        outer, own = self._outer, ThreadState.now()
        assert outer is not None
        self._own = None
        if own == outer:
            return
        self._modes = [_pop_mode() for _ in range(own.modes - outer.modes)]
        self._own = own
        outer.switch()
