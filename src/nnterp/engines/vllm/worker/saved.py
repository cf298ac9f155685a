"""Keeps what a block has saved apart from what is saved elsewhere in its thread.

nnsight's ``.save()`` puts the value's id into a set that belongs to the thread, cleared when the
outermost trace is left. A worker enters no trace, its requests share a thread, and the thread may
be the caller's own. So each block has a record of its own, and an id leaves it with its value,
since the next value may be given the same id.
"""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakValueDictionary

from greenlet import getcurrent
from nnsight.tracing.tracer import _local


class Saved:
    """Records the ids of saved values, each for as long as it is that value's."""

    def __init__(self) -> None:
        self._values: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._without_weak_references: dict[int, Any] = {}

    def add(self, number: int) -> None:
        """Record the value whose id is ``number``."""
        # nnsight passes the id alone, while it holds the value.
        value = ctypes.cast(number, ctypes.py_object).value
        try:
            self._values[number] = value
        except TypeError:
            self._without_weak_references[number] = value

    def __contains__(self, number: object) -> bool:
        return number in self._without_weak_references or number in self._values

    def ids(self) -> set[int]:
        """Return the ids of the recorded values that still exist."""
        return {*self._without_weak_references, *self._values.keys()}


class _OfRunningBlock:
    """Stands where nnsight keeps a thread's saved ids, and passes them to the running block's."""

    def add(self, number: int) -> None:
        _running().add(number)

    def __contains__(self, number: int) -> bool:
        return number in _running()

    def clear(self) -> None:
        """Do nothing: what a block saved is forgotten with the block."""


def _running() -> Saved:
    """Return what the block that is running has saved."""
    greenlet = getcurrent()
    while greenlet is not None:
        # The body of a backward pass in a block runs in a greenlet of its own, within the block's.
        mediator = getattr(greenlet, "mediator", None)
        state = None if mediator is None else mediator().__dict__.get("state")
        saved = getattr(state, "saved", None)
        if saved is not None:
            return saved
        greenlet = greenlet.parent
    raise ValueError("save() was called in the worker, and in no block; save in a trace's block")


class Saving:
    """Makes blocks save to records of their own while entered, with the thread's set put aside."""

    _saves = _OfRunningBlock()

    def __enter__(self) -> None:
        self._outer = getattr(_local, "depth", 0), getattr(_local, "saves", None)
        # The depth is as in a trace: outside one nnsight saves nothing.
        _local.depth, _local.saves = 1, self._saves

    def __exit__(self, *_: object) -> None:
        _local.depth, _local.saves = self._outer
