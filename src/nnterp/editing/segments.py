"""Cuts a prompt's sequence into segments, in each of which every row has the same changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from nnterp.editing.composed import RowChange
from nnterp.editing.request import Change
from nnterp.records.positions import Range
from nnterp.vocabulary.names import Place

#: What is changed of a row, at each place at which anything is.
RowChanges = Mapping[Place, Sequence[RowChange]]


class Segment(NamedTuple):
    """A `Segment` is a run of adjacent positions whose rows have the same changes.

    Attributes:
        range: The positions.
        changes: The changes of each row.
    """

    range: Range
    changes: RowChanges


def segments(changes: Mapping[Place, Sequence[Change]], run: int) -> list[Segment]:
    """Return the segments of a prompt in which anything is changed, in order.

    A change with a vector for each edited position makes each of them a segment of its own.

    Args:
        changes: The prompt's changes at each place.
        run: The number of tokens of its sequence that steps run at most.
    """
    cuts = {0, run}
    for change in _each(changes):
        for start, stop in change.ranges:
            end = min(stop, run)
            cuts |= set(range(start, end + 1)) if _has_row_each(change) else {start, end}
    bounds = sorted(cut for cut in cuts if cut <= run)
    found = []
    for start, stop in pairwise(bounds):
        here = {place: _at(own, start) for place, own in changes.items()}
        here = {place: own for place, own in here.items() if own}
        if here:
            found.append(Segment(Range(start, stop), here))
    return found


def _each(changes: Mapping[Place, Sequence[Change]]) -> list[Change]:
    """Return every change, once."""
    return list({id(change): change for own in changes.values() for change in own}.values())


def _has_row_each(change: Change) -> bool:
    """Return whether ``change`` has a vector for each edited position."""
    tensors = change.affine.add, change.affine.direction
    return any(tensor is not None and len(tensor) > 1 for tensor in tensors)


def _at(changes: Sequence[Change], position: int) -> list[RowChange]:
    """Return those of ``changes`` that change the row at ``position``."""
    found = []
    for change in changes:
        before = 0
        for start, stop in change.ranges:
            if start <= position < stop:
                entry = before + position - start if _has_row_each(change) else 0
                found.append(RowChange(change, entry))
            before += stop - start
    return found
