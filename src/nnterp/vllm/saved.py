"""What a block has saved, apart from what is saved elsewhere in its thread.

nnsight's ``.save()`` notes the value's id in a set that belongs to the thread, cleared when
the outermost trace is left. A worker enters no trace, its requests share a thread, and the
thread may be the caller's own: so each block has its notes to itself, and a note ends with
its value, whose id the next value may be given.
"""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakValueDictionary

from nnsight.tracing.tracer import _local


class Saved:
    """The ids of saved values, each for as long as it is that value's."""

    def __init__(self) -> None:
        self._values: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._without_weak_references: dict[int, Any] = {}

    def add(self, number: int) -> None:
        """Note the value whose id is ``number``."""
        # nnsight hands over no more than the id, while it holds the value.
        value = ctypes.cast(number, ctypes.py_object).value
        try:
            self._values[number] = value
        except TypeError:
            self._without_weak_references[number] = value

    def __contains__(self, number: int) -> bool:
        return number in self._without_weak_references or number in self._values

    def clear(self) -> None:
        """Forget every value."""
        self._values.clear()
        self._without_weak_references.clear()


class Notes:
    """What is saved while this is entered; the thread's own notes are put back after it."""

    def __init__(self) -> None:
        self._saved = Saved()
        # As in a trace, without which nnsight saves nothing.
        self._depth = 1

    def __enter__(self) -> None:
        self._outer = getattr(_local, "depth", 0), getattr(_local, "saves", None)
        _local.depth, _local.saves = self._depth, self._saved

    def __exit__(self, *_: object) -> None:
        self._depth = _local.depth
        _local.depth, _local.saves = self._outer
