"""Packs a trace's blocks into the bytes from which the worker rebuilds them.

A request carries its block: the source of the block's body, and the values of the names it uses.
The requests of a trace mostly share both, because their blocks are written in one ``with``
statement. So a body is reduced to source once, the values are pickled once for requests that use
the very same ones, and the worker compiles a source once. Each request still gets values of its
own.
"""

from __future__ import annotations

import contextlib
import io
from functools import lru_cache
from typing import Any

import torch
from nnsight.intervention.interleaver import Mediator
from nnsight.intervention.serialization import CustomCloudPickler, reduce_block
from nnsight.tracing.tracer import _saves

from nnterp.engines.vllm.transport.arrival import Arriving
from nnterp.lifetime import copied

#: How many bodies are cached in reduced form, as source.
_REDUCED = 256


class Payloads:
    """Packs the blocks of one trace, and equal ones once."""

    def __init__(self) -> None:
        self._packed: dict[Any, bytes] = {}

    def pack(self, block: Mediator) -> bytes:
        """Return the bytes from which the worker rebuilds ``block``.

        Sets ``block.presaved``, the names that were bound and saved above the block, and
        ``block.outside``, the names that it uses from outside with their values.
        """
        source, names = _reduced(block.node)
        lcls = {name: block.lcls[name] for name in names if name in block.lcls}
        glbls = {}
        for name in names - lcls.keys():
            # The globals of a nested block find names that they do not list.
            with contextlib.suppress(KeyError):
                glbls[name] = block.glbls[name]
        # What was bound and saved above the block is one object, shared by all blocks of the trace.
        saved = _saves()
        block.presaved = {name for name, value in lcls.items() if id(value) in saved}
        block.outside = glbls | lcls
        key = (source, *((name, id(value)) for name, value in (lcls | glbls).items()))
        if key not in self._packed:
            arriving = Arriving(source, glbls, lcls, block.presaved, block.code.co_filename)
            buffer = io.BytesIO()
            _Pickler(buffer).dump(arriving)
            self._packed[key] = buffer.getvalue()
        return self._packed[key]


class PackedBlock(Mediator):
    """Carries a packed payload in place of what nnsight would pickle of the mediator.

    Attributes:
        payload: The bytes from which the worker rebuilds the block.
        outside: The names that the block uses from outside, with their values.
    """

    payload: bytes
    outside: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty string, because the payload is sent instead."""
        return str, ()


class _Pickler(CustomCloudPickler):
    """Pickles as nnsight's pickler does, except that a tensor takes along its own elements only.

    torch pickles a tensor's whole storage, of which a row is a small part.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.untyped_storage().nbytes() > obj.nbytes:
            return copied(obj.detach()).requires_grad_(obj.requires_grad).__reduce_ex__(4)
        return super().reducer_override(obj)


class _AnyName(dict[str, Any]):
    """Binds every name, to the name itself."""

    def __missing__(self, name: str) -> str:
        return name


@lru_cache(_REDUCED)
def _reduced(node: Any) -> tuple[str, frozenset[str]]:
    """Return a ``with`` statement's body as source, and the names it may take from outside."""
    source, names, _ = reduce_block(node, _AnyName(), {})
    return source, frozenset(names)
