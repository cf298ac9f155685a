"""What a block changes of the objects around it.

A block is written among objects of its caller's: a list that it appends to, a tensor that it fills,
an object whose attributes it sets. The worker has copies of them. So each is remembered as it
arrived, under the path that leads to it from the names the block uses; what is different in the
end goes home under that path, and is done there to the caller's own.
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


#: Packages of which no object is the caller's to keep results in.
_MACHINERY = ("nnsight", "nnterp", "vllm")


class _Remembered(NamedTuple):
    path: Path
    value: Any
    then: Any


class CapturedObjects:
    """The objects around a block in the worker, as they arrived with it.

    Args:
        names: The names that the block uses from outside.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._all = list(_reachable(names))
        self._paths = {id(one.value): one.path for one in self._all}

    def changes(self) -> list[tuple[Path, Change]]:
        """What is different now, and where."""
        found = ((path, _difference(value, then)) for path, value, then in self._all)
        return [(path, change.mapped(self.referring)) for path, change in found if change]

    def referring(self, value: Any) -> Any:
        """``value``, with a reference in place of each of these objects that it is or holds."""
        paths = self._paths

        def reference(part: Any) -> Any:
            return Outer(paths[id(part)]) if id(part) in paths else part

        return _with(value, reference) if paths else value


def _reachable(names: Mapping[str, Any]) -> Iterator[_Remembered]:
    """Every object that can be changed and is reached from ``names``, once."""
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
    """What ``value`` holds, and how it is reached from there."""
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
    """Whether ``value`` is an object whose attributes are the caller's to set."""
    if isinstance(value, (type, FunctionType, MethodType, ModuleType, Tensor, np.ndarray)):
        return False
    package = type(value).__module__.partition(".")[0]
    attributes = getattr(value, "__dict__", None)
    # What has a name in the worker did not travel.
    return isinstance(attributes, dict) and not (
        package in _MACHINERY or "_persistent_id" in attributes
    )


def _state(value: Any) -> Any:
    """What tells whether ``value`` has changed; None for what is not remembered."""
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
    if isinstance(value, (list, deque)):
        return _of_sequence(list(value), then)
    if isinstance(value, set):
        added, removed = value - then, then - value
        return Members(list(added), list(removed)) if added or removed else None
    if isinstance(value, (Tensor, np.ndarray)):
        return Numbers(value) if _state(value) != then else None
    return _of_mapping(value if isinstance(value, dict) else vars(value), then)


def _of_sequence(now: Sequence[Any], then: Sequence[Any]) -> Change | None:
    if len(now) < len(then):
        return Whole(list(now))
    pairs = enumerate(zip(now, then, strict=False))
    put = [(index, new) for index, (new, old) in pairs if new is not old]
    appended = list(now[len(then) :])
    return Items(put, [], appended) if put or appended else None


def _of_mapping(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> Change | None:
    nothing = object()
    put = [(key, value) for key, value in now.items() if then.get(key, nothing) is not value]
    removed = [key for key in then if key not in now]
    return Items(put, removed, []) if put or removed else None
