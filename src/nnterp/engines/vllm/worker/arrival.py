"""Rebuilds a block in the worker from the payload that its request carries."""

from __future__ import annotations

import ast
import itertools
import linecache
import weakref
from functools import lru_cache
from types import CodeType
from typing import Any

from nnsight.intervention.interleaver import Mediator

from nnterp.engines.vllm.worker.blocks import RequestBlock
from nnterp.engines.vllm.worker.captured import CapturedObjects
from nnterp.engines.vllm.worker.request_state import RequestState
from nnterp.tracing.steps import with_ends

#: The file name that nnsight gives a block that arrived; tracebacks are told apart by it.
_FILE = "<edit-{}>"


_numbers = itertools.count()

#: How many sources are cached in compiled form.
_COMPILED = 256


def rebuild(
    source: str, glbls: dict[str, Any], lcls: dict[str, Any], presaved: set[str], file: str
) -> Mediator:
    """Return the block with this ``source``, among these names, that the user wrote in ``file``.

    Args:
        source: The source of its body.
        glbls: The global names that it uses, with their values.
        lcls: The local names that it uses, with their values.
        presaved: Those of the names that were saved above it.
        file: The user's file.
    """
    state = RequestState(file, CapturedObjects(glbls | lcls))
    block = RequestBlock(_compiled(source), glbls, lcls, state)
    block.presaved = presaved
    return block


@lru_cache(_COMPILED)
def _compiled(source: str) -> CodeType:
    """Compile ``source`` under a file name of its own, by which `linecache` finds it."""
    # Tracebacks, and a backward pass written in the block, read the source by this name.
    name = _FILE.format(next(_numbers))
    code = compile(with_ends(ast.parse(source)), name, "exec")
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    weakref.finalize(code, linecache.cache.pop, name, None)
    return code
