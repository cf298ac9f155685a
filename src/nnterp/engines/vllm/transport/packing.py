"""How saved values get from the worker to the client.

Pickle is good at structure and poor at tensors: a few hundred small ones cost more than
the forward that made them. A packed value is the pickled structure with a number in each
tensor's place, and beside it the tensors: as they are, where the engine is in the caller's
process; in memory the two processes share, on one host; inside the message, from another.

Every tensor arrives with storage of its own and on the device it was saved on.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nnterp.engines.vllm.transport.address import Address
from nnterp.engines.vllm.transport.contents import (
    Contents,
    HeldHere,
    InMessage,
    InProcess,
    OnHost,
)
from nnterp.lifetime import copied


def pack(value: Any, to: Address) -> bytes:
    """``value`` as bytes that ``pickle.loads`` turns back into it, in the process at ``to``.

    Args:
        value: Anything that pickles.
        to: The process that will open it.

    Raises:
        OSError: Nowhere on this host has room for its tensors.
    """
    return pickle.dumps(_packed(value, to), pickle.HIGHEST_PROTOCOL)


def pack_each(
    values: Mapping[str, Any], to: Address, instead: Callable[[Any, Exception], Any]
) -> bytes:
    """``values`` by name, as `pack` would, each apart so that one without room is no other's.

    Args:
        values: The values.
        to: The process that will open them.
        instead: What to send for one that cannot be packed, given that and what went wrong.
    """
    packed = {}
    for name, value in values.items():
        try:
            packed[name] = _packed(value, to)
        except Exception as error:  # told to the one whose it is
            packed[name] = _packed(instead(value, error), to)
    return pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)


def hold(value: Any) -> bytes:
    """``value`` itself, as bytes that ``pickle.loads`` turns into it, once, in this process."""
    return pickle.dumps(HeldHere(value), pickle.HIGHEST_PROTOCOL)


def _packed(value: Any, to: Address) -> _Packed:
    tensors: list[Tensor] = []
    buffer = io.BytesIO()
    _Structure(buffer, tensors).dump(value)
    own = Address.own()
    contents: Contents
    if not tensors or not to.nearby:
        contents = InMessage.write(tensors)
    elif to.process == own.process:
        contents = InProcess.keep(tensors)
    else:
        contents = OnHost.write(tensors, to.number)
    return _Packed(buffer.getvalue(), contents)


def rehearse(value: Any) -> None:
    """Raise what `pack` would of a value that cannot travel, and do no more."""
    _Structure(io.BytesIO(), []).dump(value)


class _Packed:
    """Pickles into a call that opens it."""

    def __init__(self, structure: bytes, contents: Contents) -> None:
        self._parts = structure, contents

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, self._parts


def _open(structure: bytes, contents: Contents) -> Any:
    unpickler = _Unpickler(io.BytesIO(structure))
    unpickler.tensors = contents.take()
    return unpickler.load()


class _Structure(pickle.Pickler):
    """Pickles a value with a number in place of each plain tensor."""

    def __init__(self, buffer: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not Tensor or not _has_plain_bytes(obj):
            return None
        number = self._numbers.setdefault(id(obj), len(self._tensors))
        if number == len(self._tensors):
            self._tensors.append(obj)
        return number

    def reducer_override(self, obj: Any) -> Any:
        # Any other tensor is torch's to pickle, though without the storage it is a view of.
        strided = isinstance(obj, Tensor) and obj.layout is torch.strided
        if strided and obj.untyped_storage().nbytes() > obj.nbytes:
            return copied(obj).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _has_plain_bytes(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and (tensor.is_cpu or tensor.is_cuda)
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


class _Unpickler(pickle.Unpickler):
    tensors: Sequence[Tensor]

    def persistent_load(self, number: int) -> Tensor:
        return self.tensors[number]
