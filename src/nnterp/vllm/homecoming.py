"""What a trace's requests bring home, put together as one trace's results.

Each invoke rides a request of its own and comes back with its own copy of whatever the
blocks share. nnsight merges those copies slot by slot; here the lists that blocks append
to are lined up first, so that each request's elements have slots of their own, and what
the worker could only note down is said in the caller's process.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

#: Where an error that is none carries warnings to the caller's process.
WARNINGS_KEY = "nnterp_warnings"


def prepare(blocks: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Ready what came back for nnsight to merge.

    Args:
        blocks: The trace's mediators, in the order of their requests.
        outputs: Each request's finished output, as nnsight attached to it.
    """
    failures = []
    for block, output in zip(blocks, outputs, strict=True):
        error = getattr(output, "nnsight_error", None) or {}
        for message in error.get(WARNINGS_KEY, ()):
            _warn(block, message)
        if error and not error["is_control_flow"]:
            failures.append(error)
    if len(failures) > 1:
        # nnsight raises the first.
        failures[0]["traceback"] += f"\n\n{len(failures) - 1} more of the trace's requests failed"
    for block in blocks:
        # nnsight knows what is saved by identity, and None is everyone's.
        block.presaved -= {name for name in block.presaved if block.lcls.get(name) is None}
    for name in set().union(*(block.presaved for block in blocks)):
        copies = [saves for output in outputs for saves in _saves(output) if name in saves]
        original = next(block.lcls[name] for block in blocks if name in block.presaved)
        if len(copies) < 2:
            continue
        if isinstance(original, list):
            _line_up(copies, name, len(original))
        elif not isinstance(original, dict):
            _warn(
                blocks[0],
                f"{name!r}, a {type(original).__name__}, was saved above several invokes, and each "
                "changed a copy of its own: only the last request's is kept. Share a list or a "
                "dict, or save under a name in each invoke",
            )


def _saves(output: Any) -> list[dict[str, Any]]:
    """What an output's sequences saved; one, unless ``n`` asked for more."""
    return getattr(output, "nnsight_sequences", None) or [output.nnsight_saves]


def _line_up(copies: list[dict[str, Any]], name: str, shared: int) -> None:
    """Give each copy's appended elements slots that no other copy has.

    nnsight takes None for a slot a request did not write.
    """
    appended = [len(saves[name]) - shared for saves in copies]
    if min(appended) < 0 or not any(appended):
        return
    for index, saves in enumerate(copies):
        before, after = sum(appended[:index]), sum(appended[index + 1 :])
        own = saves[name]
        saves[name] = [*own[:shared], *[None] * before, *own[shared:], *[None] * after]


def _warn(block: Any, message: str) -> None:
    line = block.node.lineno if block.node is not None else 1
    warnings.warn_explicit(message, UserWarning, block.code.co_filename, line)
