"""Makes of a run's changes what the tables in an engine's compiled forward are to hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnterp.editing.composed import Composed, RowChange, TwoDirections, composed, packed
from nnterp.editing.request import Change, Changes
from nnterp.editing.segments import RowChanges, Segment, segments
from nnterp.engines.vllm.transport.in_graph import Declared, GraphEdits
from nnterp.vocabulary.names import Place

#: What identifies the changes of a row: each change, by its id, and the vector it takes.
_Key = tuple[tuple[int, int], ...]


def graph_edits(
    changes: Changes,
    run: Sequence[int],
    rows: Mapping[Place, tuple[int, ...]],
    declared: Declared,
) -> GraphEdits:
    """Return ``changes`` as edits for the tables of a compiled forward.

    Args:
        changes: The changes of each prompt at each place.
        run: The number of tokens that steps run at most, of each prompt's sequence.
        rows: The shape of a token's row of the value at each place.
        declared: What the engine was loaded with.

    Raises:
        ValueError: The edits of a row are not of the form that a table holds, or a prompt has more
            different ones than there are slots.
    """
    made = _Tables(rows, declared)
    of_prompts: dict[int, dict[Place, Sequence[Change]]] = {}
    for place, own in changes.items():
        for prompt, each in own.items():
            of_prompts.setdefault(prompt, {})[place] = each
    # Prompts with the very same changes, as those of one edit for all, are cut up alike.
    cut: dict[tuple[Any, ...], list[Segment]] = {}
    ranges = {}
    for prompt, at in of_prompts.items():
        key = run[prompt], tuple((place, *map(id, each)) for place, each in at.items())
        if key not in cut:
            cut[key] = segments(at, run[prompt])
        ranges[prompt] = [
            (segment.range, made.slot(segment.changes, prompt)) for segment in cut[key]
        ]
    tables = {row: packed(own) for row, own in made.edits.items()}
    edits = GraphEdits(tables, made.slots, ranges)
    for prompt in ranges:
        needed = len(edits.needed([prompt]))
        if needed > declared.slots:
            raise ValueError(
                f"prompt {prompt} has {needed} positions with edits of their own, and this engine "
                f"holds {declared.slots} different ones at a time; load it with edit_slots={needed}"
            )
    return edits


class _Tables:
    """Collects the different edits of rows, and the different combinations of them.

    Args:
        rows: The shape of a token's row of the value at each place.
        declared: What the engine was loaded with.

    Attributes:
        edits: The different edits of a row, by the shape of the row.
        slots: For each different combination, the edit at each place, by the place's name.
    """

    def __init__(self, rows: Mapping[Place, tuple[int, ...]], declared: Declared) -> None:
        self._rows = rows
        self._declared = declared
        self._combinations: dict[tuple[tuple[Place, int], ...], int] = {}
        self._indices: dict[tuple[tuple[int, ...], _Key], int] = {}
        self.edits: dict[tuple[int, ...], list[Composed]] = {}
        self.slots: list[dict[str, int]] = []

    def slot(self, changes: RowChanges, prompt: int) -> int:
        """Return the index of the combination ``changes``, of a row of ``prompt``."""
        edits = tuple((place, self._edit(place, own, prompt)) for place, own in changes.items())
        if edits not in self._combinations:
            self._combinations[edits] = len(self.slots)
            self.slots.append({str(place): edit for place, edit in edits})
        return self._combinations[edits]

    def _edit(self, place: Place, changes: Sequence[RowChange], prompt: int) -> int:
        """Return the index of ``changes`` at ``place`` among the different edits of its rows."""
        row = self._rows[place]
        key = row, tuple((id(change), entry) for change, entry in changes)
        if key not in self._indices:
            try:
                made = composed(changes, row)
            except TwoDirections as error:
                raise ValueError(
                    f"the edits of prompt {prompt} at {place} remove components along two "
                    "directions of one row, and an engine loaded with edits= removes one; load "
                    "without edits= for more"
                ) from error
            if made.direction is not None and not self._declared.directions:
                raise ValueError(
                    f"an edit of prompt {prompt} at {place} is along a direction, and this engine "
                    "was loaded for edits without; load it with directions=True"
                )
            own = self.edits.setdefault(row, [])
            self._indices[key] = len(own)
            own.append(made)
        return self._indices[key]
