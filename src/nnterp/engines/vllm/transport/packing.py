"""Pickles saved values for the client, with their tensors sent apart from the pickle.

Pickle is good at structure and poor at tensors: a few hundred small ones cost more than the forward
that made them. A packed value is the pickled structure, with a number as the persistent id of each
tensor, and beside it the tensors: copied within the process, where the engine is in the caller's
process; in memory that the two processes share, on one host; inside the message, from another host.

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
    """Return ``value`` as bytes that ``pickle.loads`` turns back into it in the process ``to``.

    Args:
        value: Anything that can be pickled.
        to: The address of the process that will open it.

    Raises:
        OSError: No folder on this host has room for its tensors.
    """
    return pickle.dumps(_packed(value, to), pickle.HIGHEST_PROTOCOL)


def pack_each(
    values: Mapping[str, Any], to: Address, instead: Callable[[Any, Exception], Any]
) -> bytes:
    """Pack ``values`` as `pack` would, but each apart, so that one without room fails alone.

    Args:
        values: The values, by name.
        to: The address of the process that will open them.
        instead: Returns what to send in place of a value that cannot be packed, given the value and
            the exception.

    Returns:
        Bytes that ``pickle.loads`` turns into the values by name.
    """
    packed = {}
    for name, value in values.items():
        try:
            packed[name] = _packed(value, to)
        except Exception as error:  # told to the one whose it is
            packed[name] = _packed(instead(value, error), to)
    return pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)


def hold(value: Any) -> bytes:
    """Return bytes that ``pickle.loads`` turns into ``value`` itself, once, in this process."""
    return pickle.dumps(HeldHere(value), pickle.HIGHEST_PROTOCOL)


def _packed(value: Any, to: Address) -> _Packed:
    """Pickle ``value``, and put its tensors where the process at ``to`` can take them."""
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
    """Raise what `pack` would raise for a value that cannot be pickled, and do no more."""
    _Structure(io.BytesIO(), []).dump(value)


class _Packed:
    """Pickles as a call of `_open`, which unpickles the packed value."""

    def __init__(self, structure: bytes, contents: Contents) -> None:
        self._parts = structure, contents

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, self._parts


def _open(structure: bytes, contents: Contents) -> Any:
    """Unpickle ``structure`` with the tensors of ``contents`` in their places."""
    unpickler = _Unpickler(io.BytesIO(structure))
    unpickler.tensors = contents.take()
    return unpickler.load()


class _Structure(pickle.Pickler):
    """Pickles a value with a number, as a persistent id, in place of each plain tensor."""

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
        # Any other tensor is pickled by torch, but without the rest of a storage that it is a view
        # of.
        strided = isinstance(obj, Tensor) and obj.layout is torch.strided
        if strided and obj.untyped_storage().nbytes() > obj.nbytes:
            return copied(obj).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _has_plain_bytes(tensor: Tensor) -> bool:
    """Return whether ``tensor`` can be sent as its bytes, dtype and shape alone."""
    return (
        tensor.layout is torch.strided
        and (tensor.is_cpu or tensor.is_cuda)
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


class _Unpickler(pickle.Unpickler):
    """Unpickles a structure, with a tensor in place of each persistent id.

    Attributes:
        tensors: The tensors, by their numbers.
    """

    tensors: Sequence[Tensor]

    def persistent_load(self, number: int) -> Tensor:
        return self.tensors[number]
