"""Makes edits and reads part of a module's own forward, for a compiler and CUDA graphs to record.

A recorded forward replays kernels and runs no Python. What changes from one replay to the next is
therefore in tensors that stay where they are: for each token of the step the number of its slot,
and tables with a row for each slot. Slot 0 changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nnterp.editing.composed import Composed
from nnterp.engines.vllm.ports import Port

#: The name under which a module with edits has the slots of the step's tokens.
_SLOTS = "nnterp_slots"


class EditTable:
    """An `EditTable` changes the rows of one value in a module's forward.

    Args:
        port: Where the value is.
        name: A name for its tensors on the module.
        slots: The slot of each token of the step, ``[tokens]``.
        count: How many slots there are, besides slot 0.
        directions: Whether an edit can remove a component along a direction.
    """

    def __init__(self, port: Port, name: str, slots: Tensor, count: int, directions: bool) -> None:
        self.port = port
        self._heads, self._width = port.row if len(port.row) > 1 else (1, *port.row)
        self._names: dict[str, str] = {}
        self._directed = directions
        one, all_ = (count + 1, self._heads, 1), (count + 1, self._heads, self._width)

        def table(part: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
            self._names[part] = f"nnterp_{name}_{part}"
            made = torch.zeros(shape, dtype=dtype, device=slots.device)
            port.module.register_buffer(self._names[part], made, persistent=False)
            return made

        if not hasattr(port.module, _SLOTS):
            port.module.register_buffer(_SLOTS, slots, persistent=False)
        self._changes = table("changes", one, torch.bool)
        self._tables = {"scale": table("scale", one), "add": table("add", all_)}
        if directions:
            self._tables |= {
                "coefficient": table("coefficient", one),
                "direction": table("direction", all_),
            }

    def install(self, slots: Tensor, rows: Composed) -> None:
        """Make ``rows`` the edits of ``slots``.

        Args:
            slots: ``[slots]``, on the device.
            rows: Tensors ``[slots, heads, 1 or width]``, on the device.
        """
        self._changes.index_copy_(0, slots, rows.changes)
        for part, table in self._tables.items():
            values = getattr(rows, part)
            if values is not None:  # directions, where all coefficients are zero
                table.index_copy_(0, slots, values)

    def release(self, slots: Tensor) -> None:
        """Make ``slots``, ``[slots]`` on the device, change nothing."""
        self._changes.index_fill_(0, slots, False)

    def __call__(self, module: Any, passed: Any) -> Any:
        """Return what ``module`` passes, ``passed``, with the edits made; it is traced."""
        held = self.port.held.take(passed)
        rows = held.reshape(-1, self._heads, self._width)
        slots = getattr(module, _SLOTS)[: rows.shape[0]]

        def own(part: str) -> Tensor:
            return getattr(module, self._names[part])[slots]

        wide = rows.float()
        scale = own("scale")
        # Zero times what is not finite is not zero.
        new = torch.where(scale == 0, 0.0, scale * wide)
        if self._directed:
            direction, coefficient = own("direction"), own("coefficient")
            along = coefficient * (wide * direction).sum(-1, keepdim=True)
            new = new + torch.where(coefficient == 0, 0.0, along * direction)
        new = (new + own("add")).to(held.dtype).reshape(held.shape)
        changed = own("changes").expand(rows.shape).reshape(held.shape)
        return self.port.held.put(passed, new, changed)


class ReadBuffer:
    """A `ReadBuffer` keeps the rows of one value, of the last step, in a module's forward.

    Args:
        port: Where the value is.
        name: A name for its tensor on the module.
        like: An empty tensor with the type and device of the value.
        room: The most tokens of a step.

    Attributes:
        rows: The rows, ``[room, width]``; with any heads flattened.
    """

    def __init__(self, port: Port, name: str, like: Tensor, room: int) -> None:
        self.port = port
        self._name = f"nnterp_{name}_rows"
        self._width = torch.Size(port.row).numel()
        self.rows = like.new_zeros(room, self._width)
        port.module.register_buffer(self._name, self.rows, persistent=False)

    def __call__(self, module: Any, passed: Any) -> Any:
        """Keep the value's rows, and return ``passed``, what ``module`` passes; it is traced."""
        rows = self.port.held.take(passed).reshape(-1, self._width)
        getattr(module, self._name)[: rows.shape[0]].copy_(rows)
        return passed


#: A step of a forward: takes a module and what it passes, and returns what it passes instead.
GraphStep = Callable[[Any, Any], Any]


def add_steps(
    module: nn.Module, entering: Sequence[GraphStep], leaving: Sequence[GraphStep]
) -> None:
    """Make steps part of the forward of ``module``.

    Args:
        module: The module, whose class becomes a subclass of what it is.
        entering: Steps to take on what it is called with, ``(args, kwargs)``, in order.
        leaving: Steps to take on what it returns, in order.
    """
    base = type(module)

    # A compiler follows a method of the class; and who reads the signature finds the module's own.
    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        called: Any = (args, kwargs)
        for step in entering:
            called = step(self, called)
        returned = base.forward(self, *called[0], **called[1])
        for step in leaving:
            returned = step(self, returned)
        return returned

    module.__class__ = type(base.__name__, (base,), {"forward": forward, "__doc__": base.__doc__})
