"""Records changes made to a copy of an object, and applies them to the original.

Changes are of lists, mappings, sets, tensors and attributes. Several requests may each have changed
a copy of one object; their changes are applied to it one after another. Every kind of change has
two methods. ``do`` applies the change to a target: it raises LookupError, AttributeError, TypeError
or ValueError where the target does not take it, and returns whether it overwrote what another
change had set. ``mapped`` returns the same change with a function applied to every item or
attribute that it sets; the members of a set and the numbers of a tensor stay as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: The keys of an object that earlier changes have set or removed.
Touched = set[Any]


class Items(NamedTuple):
    """Sets, removes and appends items, or sets and removes attributes.

    Attributes:
        put: The keys or names that are set, each with its value.
        removed: The keys or names that are gone.
        appended: The items that come after the last.
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
    """Replaces all items of a sequence that lost some.

    Attributes:
        items: The items it has now.
    """

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
    """Adds members to a set and removes others.

    Attributes:
        added: The members to add.
        removed: The members to remove.
    """

    added: list[Any]
    removed: list[Any]

    def mapped(self, function: Callable[[Any], Any]) -> Members:
        return Members([*map(function, self.added)], [*map(function, self.removed)])

    def do(self, target: Any, touched: Touched) -> bool:
        target.difference_update(self.removed)
        target.update(self.added)
        return False


class Numbers(NamedTuple):
    """Sets the numbers of a tensor or an array that changed.

    Attributes:
        now: The tensor or array, as changed.
        then: A copy of it as it was, in the process where the change is applied; None before that.
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
    """Return where two tensors or arrays differ; they do not where both are NaN."""
    return (one != other) & ((one == one) | (other == other))


#: A change of an object, of any kind.
Change = Items | Whole | Members | Numbers
