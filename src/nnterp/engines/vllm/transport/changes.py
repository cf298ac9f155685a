"""Changes of lists, mappings, sets, tensors and attributes, made to a copy and done to another.

Several requests may each have changed a copy of one object. Their changes are done to it one
after another: ``do`` raises LookupError, AttributeError, TypeError or ValueError where the target
does not take it, and tells whether it took the place of another's. ``mapped`` is the same change
with a function of every value that it puts somewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: The keys of an object that earlier changes have set.
Touched = set[Any]


class Items(NamedTuple):
    """Items or attributes set, removed, and put after the last.

    Attributes:
        put: Each with its value.
        removed: The keys or names of those that are gone.
        appended: What comes after the last.
    """

    put: list[tuple[Any, Any]]
    removed: list[Any]
    appended: list[Any]

    def mapped(self, function: Callable[[Any], Any]) -> Items:
        put = [(key, function(value)) for key, value in self.put]
        return Items(put, self.removed, [function(value) for value in self.appended])

    def do(self, target: Any, touched: Touched) -> bool:
        keys = {key for key, _ in self.put} | set(self.removed)
        if isinstance(target, (list, deque, dict)):
            for key, value in self.put:
                target[key] = value
            for key in self.removed:
                del target[key]
            if not isinstance(target, dict):
                target.extend(self.appended)
        else:
            for name, value in self.put:
                setattr(target, name, value)
            for name in self.removed:
                delattr(target, name)
        took = not keys.isdisjoint(touched)
        touched |= keys
        return took


class Whole(NamedTuple):
    """All items anew, of a sequence that lost some."""

    items: list[Any]

    def mapped(self, function: Callable[[Any], Any]) -> Whole:
        return Whole([function(value) for value in self.items])

    def do(self, target: Any, touched: Touched) -> bool:
        took = bool(touched)
        target.clear()
        target.extend(self.items)
        touched.update(range(len(target)))
        return took


class Members(NamedTuple):
    """Members added to a set and removed from it."""

    added: list[Any]
    removed: list[Any]

    def mapped(self, function: Callable[[Any], Any]) -> Members:
        return self

    def do(self, target: Any, touched: Touched) -> bool:
        target.difference_update(self.removed)
        target.update(self.added)
        return False


class Numbers(NamedTuple):
    """A tensor or an array with the numbers it has now.

    Attributes:
        now: It, as changed.
        then: It, as it was, in the process where the change is done.
    """

    now: Any
    then: Any = None

    def mapped(self, function: Callable[[Any], Any]) -> Numbers:
        return self

    def do(self, target: Any, touched: Touched) -> bool:
        now, then = self.now, self.then
        if now.shape != target.shape:
            raise ValueError(f"it has shape {tuple(now.shape)} now, and had {tuple(target.shape)}")
        if isinstance(target, Tensor):
            now = now.to(target.device)
        with torch.no_grad():
            changed = _differ(now, then)
            took = bool((changed & _differ(target, then)).any())
            target[changed] = now[changed]
        return took


def _differ(one: Any, other: Any) -> Any:
    """Where two tensors or arrays differ; not where both are not a number."""
    return (one != other) & ((one == one) | (other == other))


#: What is different in an object.
Change = Items | Whole | Members | Numbers
