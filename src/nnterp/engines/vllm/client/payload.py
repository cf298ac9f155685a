"""How a block gets to the worker.

A block rides in its request: the source of its body, and the values of the names it uses.
The requests of a trace mostly share both, written as they are in one ``with``, so a body is
reduced to source once, the values are pickled once for requests that use the very same
ones, and the worker compiles a source once. Each request still gets values of its own.
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

#: Bodies that are kept reduced to source.
_REDUCED = 256


class Payloads:
    """The payloads of one trace's blocks."""

    def __init__(self) -> None:
        self._packed: dict[Any, bytes] = {}

    def pack(self, block: Mediator) -> bytes:
        """What ``block`` is rebuilt from in the worker, as bytes."""
        source, names = _reduced(block.node)
        lcls = {name: block.lcls[name] for name in names if name in block.lcls}
        glbls = {}
        for name in names - lcls.keys():
            # A nested block's globals find names that they do not list.
            with contextlib.suppress(KeyError):
                glbls[name] = block.glbls[name]
        # What was bound and saved above the block is one object to all of the trace's.
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
    """A block whose payload is packed, and takes the place of what nnsight would pickle.

    Attributes:
        payload: What the worker rebuilds it from.
        outside: The names that it uses from outside.
    """

    payload: bytes
    outside: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ()


class _Pickler(CustomCloudPickler):
    """nnsight's pickler, except that a tensor takes along its own numbers only.

    torch pickles a tensor's whole storage, of which a row is a small part.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.untyped_storage().nbytes() > obj.nbytes:
            return copied(obj.detach()).requires_grad_(obj.requires_grad).__reduce_ex__(4)
        return super().reducer_override(obj)


class _AnyName(dict[str, Any]):
    """A namespace in which every name is bound."""

    def __missing__(self, name: str) -> str:
        return name


@lru_cache(_REDUCED)
def _reduced(node: Any) -> tuple[str, frozenset[str]]:
    """A ``with`` statement's body as source, and the names it may take from outside."""
    source, names, _ = reduce_block(node, _AnyName(), {})
    return source, frozenset(names)
