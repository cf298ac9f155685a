"""Finds the caller's own objects around a block, by the references that the worker sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnterp.engines.vllm.transport.references import (
    Outer,
    Path,
    _names_of,
    _with,
)


class Callers:
    """Holds the objects around a block in its caller's process, which are the caller's own.

    Args:
        names: The names that the block uses from outside, with their values.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def at(self, path: Path) -> Any:
        """Return the object at ``path``, whose first step is one of the block's names.

        Raises:
            LookupError, AttributeError, TypeError: There is no object at ``path``.
        """
        (_, name), *steps = path
        value = self._names[name]
        for kind, key in steps:
            if kind == "item":
                value = value[key]
            else:
                value = getattr(value, key) if kind == "attribute" else _names_of(value)[key]
        return value

    def own(self, value: Any) -> Any:
        """Return ``value`` with the caller's own object in place of each reference."""
        return _with(value, lambda part: self.at(part.path) if type(part) is Outer else part)
