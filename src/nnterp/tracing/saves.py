"""Warns of saved values that no name keeps.

What leaves a trace is what a block bound to a name and saved. ``block.layer_output.save()`` as a
statement saves a tensor that no name holds, and it would be lost without a warning.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Set
from typing import Any


def warn_of_unnamed(blocks: Iterable[Any]) -> None:
    """Warn of each save in ``blocks`` (nnsight mediators) that no name keeps, at its line."""
    # Invokes in a loop share the syntax node of the one `with` they were written in.
    for block in {id(block.node): block for block in blocks}.values():
        for call in _unnamed(block.node) if block.node is not None else ():
            warnings.warn_explicit(
                f"`{ast.unparse(call)}` is bound to no name, so it will not come out of the "
                "trace; write `name = ...`",
                UserWarning,
                block.code.co_filename,
                call.lineno,
            )


def holds_saved(value: Any, saved: Set[int]) -> bool:
    """Return whether ``value`` is a list, tuple or dict with a saved value in it, at any depth.

    Args:
        value: Anything.
        saved: The ids of saved values.
    """
    # A block that only edits saves nothing.
    waiting, seen = [value] if saved else [], set()
    while waiting:
        container = waiting.pop()
        if type(container) not in (list, tuple, dict) or id(container) in seen:
            continue
        seen.add(id(container))
        parts = container.values() if isinstance(container, dict) else container
        if not saved.isdisjoint(map(id, parts)):
            return True
        waiting.extend(parts)
    return False


def _unnamed(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in ``node`` that save a value which no name keeps."""
    for statement in ast.walk(node):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            saved = _saved_by(statement.value)
            # Saving a named value, or an element of one, keeps it under that name.
            while isinstance(saved, ast.Subscript):
                saved = saved.value
            if saved is not None and not isinstance(saved, ast.Name):
                yield statement.value


def _saved_by(call: ast.Call) -> ast.expr | None:
    """Return what ``call`` saves, if it is ``x.save()``, ``nnsight.save(x)`` or ``save(x)``."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "save":
        return call.args[0] if call.args else function.value
    if isinstance(function, ast.Name) and function.id == "save" and call.args:
        return call.args[0]
    return None
