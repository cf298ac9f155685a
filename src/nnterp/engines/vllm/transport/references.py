"""Refers to objects around a block by the path that leads to each from the block's names."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

#: How an object is reached from another: as an item, as an attribute, or under a name that a
#: function uses.
Step = tuple[str, Any]


#: How an object is reached from a block, whose names come first.
Path = tuple[Step, ...]


_NONE: frozenset[int] = frozenset()


class Outer(NamedTuple):
    """Stands for an object around the block, where what is sent to the client refers to it.

    Attributes:
        path: The path of the object.
    """

    path: Path


def as_written(path: Path) -> str:
    """Return ``path`` as one would write it in Python."""
    (_, text), *steps = path
    for kind, key in steps:
        text += f"[{key!r}]" if kind == "item" else f".{key}"
    return text


def _names_of(function: FunctionType) -> dict[str, Any]:
    """Return what a function that is sent takes from outside; nothing for an imported function."""
    code = function.__code__
    # nnsight gives a function that it sent the file name "[name:line] file".
    if function.__module__ != "__main__" and not code.co_filename.startswith("["):
        return {}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    outside = function.__globals__
    named = {name: outside[name] for name in code.co_names if name in outside}
    return named | {name: cell.cell_contents for name, cell in cells}


def _with(value: Any, replace: Callable[[Any], Any], within: frozenset[int] = _NONE) -> Any:
    """Return ``value`` with ``replace`` applied to it, or to what it holds if a plain container."""
    new = replace(value)
    # A container that holds itself is left as it is.
    if new is not value or type(value) not in (list, tuple, dict) or id(value) in within:
        return new
    within |= {id(value)}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    changed = {key: _with(part, replace, within) for key, part in parts}
    if all(changed[key] is value[key] for key in changed):
        return value
    return changed if isinstance(value, dict) else type(value)(changed.values())
