"""Finds what a block changes of the objects around it.

A block is written among objects of its caller's: a list that it appends to, a tensor that it fills,
an object whose attributes it sets. The worker has copies of them. So each is recorded as it
arrived, under the path that leads to it from the names the block uses. What is different in the end
is sent to the client under that path, and is applied there to the caller's own object.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nnterp.engines.vllm.transport.changes import Change, Items, Members, Numbers, Whole
from nnterp.engines.vllm.transport.references import (
    Outer,
    Path,
    Step,
    _names_of,
    _with,
)

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)


#: Packages whose objects are none that a caller keeps results in.
_MACHINERY = ("nnsight", "nnterp", "vllm")


class _Remembered(NamedTuple):
    """Records an object as it arrived.

    Attributes:
        path: The path that leads to it.
        value: The object.
        then: Its state as it arrived, as `_state` returned it.
    """

    path: Path
    value: Any
    then: Any


class CapturedObjects:
    """Holds the objects around a block in the worker, and records them as they arrived with it.

    Args:
        names: The names that the block uses from outside, with their values.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._all = list(_reachable(names))
        self._paths = {id(one.value): one.path for one in self._all}

    def changes(self) -> list[tuple[Path, Change]]:
        """Return what is different now, each change with the path of its object."""
        found = ((path, _difference(value, then)) for path, value, then in self._all)
        return [(path, change.mapped(self.referring)) for path, change in found if change]

    def referring(self, value: Any) -> Any:
        """Return ``value`` with a reference for each captured object that it is or holds."""
        paths = self._paths

        def reference(part: Any) -> Any:
            return Outer(paths[id(part)]) if id(part) in paths else part

        return _with(value, reference) if paths else value


def _reachable(names: Mapping[str, Any]) -> Iterator[_Remembered]:
    """Yield every object that can be changed and is reached from ``names``, once."""
    seen: set[int] = set()
    waiting: deque[tuple[Path, Any]] = deque(
        ((("name", name),), value) for name, value in names.items()
    )
    while waiting:
        path, value = waiting.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        state = _state(value)
        if state is not None:
            yield _Remembered(path, value, state)
        waiting.extend(((*path, step), part) for step, part in _parts(value))


def _parts(value: Any) -> Iterable[tuple[Step, Any]]:
    """Return what ``value`` holds, with the step that leads to each part from there."""
    if isinstance(value, (list, tuple, deque)):
        if set(map(type, value)) <= set(_PLAIN):
            return ()
        return ((("item", index), part) for index, part in enumerate(value))
    if isinstance(value, dict):
        return ((("item", key), part) for key, part in value.items())
    if isinstance(value, MethodType):
        return [(("attribute", "__self__"), value.__self__)]
    if isinstance(value, FunctionType):
        return ((("global", name), part) for name, part in _names_of(value).items())
    if _has_attributes(value):
        return ((("attribute", name), part) for name, part in vars(value).items())
    return ()


def _has_attributes(value: Any) -> bool:
    """Return whether ``value`` is an object whose attributes are the caller's to set."""
    if isinstance(value, (type, FunctionType, MethodType, ModuleType, Tensor, np.ndarray)):
        return False
    package = type(value).__module__.partition(".")[0]
    attributes = getattr(value, "__dict__", None)
    # An object with a persistent id is the worker's own, and was not sent.
    return isinstance(attributes, dict) and not (
        package in _MACHINERY or "_persistent_id" in attributes
    )


def _state(value: Any) -> Any:
    """Return what tells whether ``value`` has changed, or None for what is not recorded."""
    if isinstance(value, (list, deque)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, set):
        return set(value)
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else zlib.crc32(value.tobytes())
    return dict(vars(value)) if _has_attributes(value) else None


def _difference(value: Any, then: Any) -> Change | None:
    """Return how ``value`` differs from its state ``then``, or None where it does not."""
    if isinstance(value, (list, deque)):
        return _of_sequence(list(value), then)
    if isinstance(value, set):
        added, removed = value - then, then - value
        return Members(list(added), list(removed)) if added or removed else None
    if isinstance(value, (Tensor, np.ndarray)):
        return Numbers(value) if _state(value) != then else None
    return _of_mapping(value if isinstance(value, dict) else vars(value), then)


def _of_sequence(now: Sequence[Any], then: Sequence[Any]) -> Change | None:
    """Return the change of a sequence from ``then`` to ``now``, or None where there is none."""
    if len(now) < len(then):
        return Whole(list(now))
    pairs = enumerate(zip(now, then, strict=False))
    put = [(index, new) for index, (new, old) in pairs if new is not old]
    appended = list(now[len(then) :])
    return Items(put, [], appended) if put or appended else None


def _of_mapping(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> Change | None:
    """Return the change of a mapping from ``then`` to ``now``, or None where there is none."""
    nothing = object()
    put = [(key, value) for key, value in now.items() if then.get(key, nothing) is not value]
    removed = [key for key in then if key not in now]
    return Items(put, removed, []) if put or removed else None
