"""Packs the changes of a run for its workers.

There may be as many as there are prompts, each with vectors of its own. One by one they take longer
to pickle than a small model does to run, so all vectors of a kind travel as one tensor.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nnterp.editing.request import Change
from nnterp.records.edits import Affine

#: The changes of each prompt at each place, by the place's name.
ChangesByName = Mapping[str, Mapping[int, Sequence[Change]]]


class _Kind(NamedTuple):
    """Describes the vectors that travel as one tensor.

    Attributes:
        dtype: Their type.
        row: Their shape without the first axis.
    """

    dtype: torch.dtype
    row: tuple[int, ...]


#: Where a vector lies: the index of its tensor, and its first and last row there.
_At = tuple[int, int, int]


def pack_changes(changes: ChangesByName) -> bytes:
    """Return ``changes`` for `unpack_changes`; what several of them share travels once."""
    each = {id(one): one for own in changes.values() for many in own.values() for one in many}
    parts: dict[_Kind, list[Tensor]] = defaultdict(list)
    rows: dict[_Kind, int] = defaultdict(int)
    at: dict[int, _At] = {}
    kinds: dict[_Kind, int] = {}

    def placed(vector: Tensor | None) -> _At | None:
        if vector is None:
            return None
        if id(vector) not in at:
            kind = _Kind(vector.dtype, tuple(vector.shape[1:]))
            first = rows[kind]
            rows[kind] += len(vector)
            parts[kind].append(vector.detach().cpu())
            at[id(vector)] = kinds.setdefault(kind, len(kinds)), first, rows[kind]
        return at[id(vector)]

    said = [
        (affine.scale, placed(affine.add), placed(affine.direction), heads, ranges)
        for affine, heads, ranges in each.values()
    ]
    number = {name: index for index, name in enumerate(each)}
    named = {
        name: {prompt: [number[id(one)] for one in many] for prompt, many in own.items()}
        for name, own in changes.items()
    }
    tensors = [
        # Any type at all is bytes to NumPy, which pickles an array as it lies.
        (kind, torch.cat(own).contiguous().view(torch.uint8).numpy())
        for kind, own in parts.items()
    ]
    return pickle.dumps((tensors, said, named), pickle.HIGHEST_PROTOCOL)


def unpack_changes(packed: bytes) -> dict[str, dict[int, list[Change]]]:
    """Return the changes that `pack_changes` packed."""
    tensors, said, named = pickle.loads(packed)
    whole = [torch.from_numpy(rows).view(dtype).view(-1, *row) for (dtype, row), rows in tensors]
    vectors: dict[_At, Tensor] = {}

    def of(where: _At | None) -> Tensor | None:
        if where is None:
            return None
        if where not in vectors:
            index, first, last = where
            vectors[where] = whole[index][first:last]
        return vectors[where]

    each = [
        Change(Affine(scale, of(add), of(direction)), heads, ranges)
        for scale, add, direction, heads, ranges in said
    ]
    return {
        name: {prompt: [each[index] for index in many] for prompt, many in own.items()}
        for name, own in named.items()
    }
