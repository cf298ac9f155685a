"""Applies the changes of many prompts at one place to the rows of a forward.

The first changes of all prompts are made together, then the second ones, and so on. Those made
together are one operation each form: what differs between prompts, factors and vectors, is in
tables, from which every row takes its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nnterp.collecting.selections import Rows, Span
from nnterp.editing.request import Change, Changes
from nnterp.records.positions import Ranges
from nnterp.vocabulary.names import Place


class _Form(NamedTuple):
    """Says which parts the affine form of some changes has.

    Attributes:
        replaces: Whether what was there is dropped.
        scales: Whether it is multiplied.
        adds: Whether a vector is added.
        directed: Whether a component is removed.
        heads: The heads that are edited, or None for all.
    """

    replaces: bool
    scales: bool
    adds: bool
    directed: bool
    heads: tuple[int, ...] | None

    @classmethod
    def of(cls, change: Change) -> _Form:
        """Return the form of ``change``."""
        scale, add, direction = change.affine
        return cls(
            scale == 0, scale not in (0, 1), add is not None, direction is not None, change.heads
        )


class _Member(NamedTuple):
    """Describes a prompt's change in a stage.

    Attributes:
        ranges: The edited positions.
        entry: The change's first entry in the tables.
        each: Whether every edited position has an entry of its own.
    """

    ranges: Ranges
    entry: int
    each: bool


class _Table:
    """A `_Table` holds a vector for each entry.

    Attributes:
        parts: The vectors, ``[entries, *row]`` each.
    """

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self._as: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def take(self, entries: Tensor | None, like: Tensor) -> Tensor:
        """Return the vectors of ``entries``, ``[rows, *row]``, with the type and place of ``like``.

        Args:
            entries: The entry of each row, ``[rows]``; None where the table has one for all.
            like: A tensor.
        """
        kind = like.device, like.dtype
        if kind not in self._as:
            self._as[kind] = torch.cat([part.to(*kind) for part in self.parts])
        table = self._as[kind]
        return table if entries is None else table.index_select(0, entries)


class _Stage:
    """A `_Stage` is changes of one form that are made together, of a prompt each.

    Args:
        form: Their form.
    """

    def __init__(self, form: _Form) -> None:
        self._form = form
        self._members: dict[int, _Member] = {}
        self._scales: list[float] = []
        self._scale_table = _Table()
        self._add = _Table()
        self._direction = _Table()
        self._entries: dict[tuple[float, int, int], tuple[int, bool]] = {}
        self._kept: list[Change] = []
        self._mask: Tensor | None = None

    def add(self, prompt: int, change: Change) -> None:
        """Make ``change`` that of ``prompt``."""
        scale, add, direction = change.affine
        key = scale, id(add), id(direction)
        if key not in self._entries:
            tensors = [tensor for tensor in (add, direction) if tensor is not None]
            rows = max((len(tensor) for tensor in tensors), default=1)
            self._entries[key] = len(self._scales), rows > 1
            self._scales += [scale] * rows
            if add is not None:
                self._add.parts.append(add)
            if direction is not None:
                self._direction.parts.append(direction)
            self._kept.append(change)  # whose tensors' ids must stay theirs
        self._members[prompt] = _Member(change.ranges, *self._entries[key])

    def select(self, spans: Mapping[int, Span]) -> tuple[list[int], list[int]]:
        """Return the edited rows of a forward, and the table entry of each.

        Args:
            spans: The prompts' spans, by prompt.
        """
        rows: list[int] = []
        entries: list[int] = []
        for prompt, (ranges, entry, each) in self._members.items():
            span = spans.get(prompt)
            if span is None:
                continue
            _, row, first, length = span
            end, before = first + length, 0
            for start, stop in ranges:
                begin, over = max(start, first), min(stop, end)
                if begin < over:
                    rows += range(row + begin - first, row + over - first)
                    own = entry + before + begin - start
                    entries += range(own, own + over - begin) if each else [entry] * (over - begin)
                before += stop - start
        return rows, entries

    @property
    def has_one_entry(self) -> bool:
        """Return whether all rows take the same factors and vectors."""
        return len(self._scales) == 1

    def change(self, rows: Tensor, entries: Tensor | None) -> Tensor:
        """Return what becomes of ``rows``, ``[rows, *row]``, in their type.

        Args:
            rows: The rows, which are left as they are.
            entries: The table entry of each, ``[rows]``; None where there is one for all.
        """
        form = self._form
        if form.replaces:
            new = torch.zeros_like(rows)
            if form.adds:
                new = self._add.take(entries, rows).expand_as(rows)
        elif form.adds and not (form.scales or form.directed):
            new = rows + self._add.take(entries, rows)
        else:
            new = self._computed(rows, entries)
        if form.heads is None:
            return new
        if self._mask is None:
            mask = torch.zeros(rows.shape[1], 1, dtype=torch.bool)
            mask[list(form.heads)] = True
            self._mask = mask.to(rows.device)
        return torch.where(self._mask, new, rows)

    def _computed(self, rows: Tensor, entries: Tensor | None) -> Tensor:
        """Return the affine form of ``rows``, computed in float32 at least."""
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if self._form.directed:
            direction = self._direction.take(entries, wide)
            wide = wide - (wide * direction).sum(-1, keepdim=True) * direction
        if self._form.scales:
            if not self._scale_table.parts:
                shape = -1, *[1] * (rows.ndim - 1)
                self._scale_table.parts.append(torch.tensor(self._scales).view(shape))
            wide = wide * self._scale_table.take(entries, wide)
        if self._form.adds:
            wide = wide + self._add.take(entries, wide)
        return wide.to(rows.dtype)


class _Entered(NamedTuple):
    """Describes what a stage does in a forward.

    Attributes:
        stage: The stage.
        rows: The indices of its rows among all edited rows of the place, ``[rows]``; None for all.
        entries: The table entry of each, ``[rows]``; None where there is one for all.
    """

    stage: _Stage
    rows: Tensor | None
    entries: Tensor | None


class RowEdits:
    """A `RowEdits` makes all changes at one place, or at several that have the same ones.

    Args:
        changes: The changes of each prompt, in order.

    Attributes:
        rows: The edited rows of the forward that was entered, or None where there are none.
    """

    def __init__(self, changes: Mapping[int, Sequence[Change]]) -> None:
        stages: dict[tuple[int, _Form], _Stage] = {}
        for prompt, own in changes.items():
            for order, change in enumerate(own):
                form = _Form.of(change)
                stages.setdefault((order, form), _Stage(form)).add(prompt, change)
        self._stages = [stages[key] for key in sorted(stages, key=lambda key: key[0])]
        self.rows: Rows | None = None
        self._spans: Sequence[Span] | None = None
        self._selected: list[tuple[list[int], list[int]]] = []
        self._entered: list[_Entered] = []

    def enter(self, spans: Sequence[Span], device: torch.device) -> None:
        """Begin a forward whose rows hold ``spans`` of the prompts' tokens.

        Args:
            spans: The prompts' spans, of which no two are of one prompt.
            device: Where the rows are.
        """
        if spans is self._spans:
            return
        self._spans = spans
        by_prompt = {span.prompt: span for span in spans}
        selected = [stage.select(by_prompt) for stage in self._stages]
        if selected == self._selected and self.rows is not None:
            return  # as in most steps of a generation
        self._selected = selected
        chosen = [rows for rows, _ in selected if rows]
        if not chosen:
            self.rows = None
            return
        every = chosen[0] if len(chosen) == 1 else sorted(set().union(*chosen))
        self.rows = Rows(every, [1] * len(every))
        where = {row: index for index, row in enumerate(every)}
        self._entered = [
            _Entered(
                stage,
                None if rows == every else torch.tensor([where[row] for row in rows]).to(device),
                None if stage.has_one_entry else torch.tensor(entries).to(device),
            )
            for stage, (rows, entries) in zip(self._stages, selected, strict=True)
            if rows
        ]

    def apply(self, values: Tensor) -> Tensor:
        """Return what becomes of the edited rows, ``[rows, *row]``, in the order of `rows`."""
        for stage, rows, entries in self._entered:
            if rows is None:
                values = stage.change(values, entries)
            else:
                changed = stage.change(values.index_select(0, rows), entries)
                values = values.index_copy(0, rows, changed)
        return values


def by_place(changes: Changes) -> dict[Place, RowEdits]:
    """Return the edits of each place; places with the same changes share them."""
    made: dict[tuple[tuple[int, ...], ...], RowEdits] = {}
    found: dict[Place, RowEdits] = {}
    for place, own in changes.items():
        key = tuple((prompt, *map(id, each)) for prompt, each in own.items())
        if key not in made:
            made[key] = RowEdits(own)
        found[place] = made[key]
    return found
