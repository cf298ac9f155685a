"""Merges what a trace's requests saved into one trace's results.

Each invoke is sent in a request of its own. Warnings that the worker could only record are issued
in the caller's process, and what a block did to copies of the objects around it is applied to the
caller's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from nnterp.engines.vllm.client.callers import Callers
from nnterp.engines.vllm.transport.changes import Change, Numbers, Touched
from nnterp.engines.vllm.transport.keys import CHANGES_KEY, WARNINGS_KEY
from nnterp.engines.vllm.transport.references import Path, as_written
from nnterp.lifetime import copied


def prepare(blocks: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Prepare the saved values that came back for nnsight to hand to the trace.

    Args:
        blocks: The trace's mediators, in the order of their requests.
        outputs: Each request's finished output, with what nnsight attached to it.
    """
    failures = []
    for block, output in zip(blocks, outputs, strict=True):
        error = getattr(output, "nnsight_error", None) or {}
        say(block, error)
        if error and not error["is_control_flow"]:
            failures.append(error)
    if len(failures) > 1:
        # nnsight raises the first failure only.
        failures[0]["traceback"] += f"\n\n{len(failures) - 1} more of the trace's requests failed"
    returned = [_saves(output) for output in outputs]
    merge(blocks, returned)
    for block in blocks:
        # nnsight would merge the values of the names in `presaved`, which it takes for copies. A
        # name that still refers to the object it had before the trace needs no merging, nor does
        # None.
        block.presaved -= {
            name
            for name in block.presaved
            if block.lcls.get(name) is None
            or all(saves.get(name) is block.lcls[name] for own in returned for saves in own)
        }
    for name in set().union(*(block.presaved for block in blocks)):
        copies = [saves for own in returned for saves in own if name in saves]
        original = next(block.lcls[name] for block in blocks if name in block.presaved)
        if len(copies) > 1:
            _warn(
                blocks[0],
                f"{name!r}, a {type(original).__name__}, was saved above several invokes, and each "
                "bound the name to another: only the last request's is kept. Share a list or a "
                "dict, or save under a name in each invoke",
            )


def say(block: Any, error: dict[str, Any]) -> None:
    """Issue the warnings that the worker recorded in ``error``, at the line of ``block``."""
    for message in error.get(WARNINGS_KEY, ()):
        _warn(block, message)


def merge(blocks: Sequence[Any], returned: Sequence[Iterable[dict[str, Any]]]) -> None:
    """Apply to the caller's own objects the changes that blocks made to copies of them.

    Args:
        blocks: The mediators.
        returned: For each block, what each of its runs saved, by name, and its changes under
            `CHANGES_KEY`. It is modified in place: the changes are removed, and each reference to
            one of the caller's objects is replaced with that object.
    """
    changed: list[tuple[Path, Any, Change]] = []
    for block, runs in zip(blocks, returned, strict=True):
        callers = Callers(block.outside)
        for saves in runs:
            for path, change in saves.pop(CHANGES_KEY, ()):
                # All paths are followed before a change is applied, since a change can alter what a
                # path leads to.
                try:
                    changed.append((path, callers.at(path), change.mapped(callers.own)))
                except (LookupError, AttributeError, TypeError):
                    _warn(block, f"{as_written(path)} was changed, and is no such object out here")
            for name, value in saves.items():
                saves[name] = callers.own(value)
    for message in _done(changed):
        _warn(blocks[0], message)


def _done(changed: Sequence[tuple[Path, Any, Change]]) -> Iterable[str]:
    """Apply each change to its target, and yield the warnings to issue about it."""
    before = {id(to): _copy(to) for _, to, change in changed if isinstance(change, Numbers)}
    touched: dict[int, Touched] = {}
    said: set[int] = set()
    for path, target, change in changed:
        if isinstance(change, Numbers):
            change = change._replace(then=before[id(target)])
        try:
            took = change.do(target, touched.setdefault(id(target), set()))
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            yield f"{as_written(path)} was changed, and the change could not be kept: {error}"
            continue
        if took and id(target) not in said:
            said.add(id(target))
            yield (
                f"several requests changed the same part of {as_written(path)}, each a copy of "
                "what it was before the trace: the last one's is kept. Give each invoke a part of "
                "its own, or append"
            )


def _copy(numbers: Any) -> Any:
    """Return a copy of a tensor or an array."""
    return copied(numbers.detach()) if hasattr(numbers, "detach") else numbers.copy()


def _saves(output: Any) -> list[dict[str, Any]]:
    """Return what each sequence of an output saved; there is one unless ``n`` asked for more."""
    return getattr(output, "nnsight_sequences", None) or [output.nnsight_saves]


def _warn(block: Any, message: str) -> None:
    """Issue ``message`` as a warning at the line of ``block``."""
    line = block.node.lineno if block.node is not None else 1
    warnings.warn_explicit(message, UserWarning, block.code.co_filename, line)
