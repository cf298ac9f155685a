"""Rows of forwards, put together as the result.

Each engine runs forwards its own way and shows a `Gather`, for each place asked for, the rows
that came by. The destinations are made when the first rows show how wide they are; where
they lie is the engine's to say, for they may have to be seen from another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from nnterp.collecting.selections import Apply, Mean, Picked, Selection, Span
from nnterp.lifetime import Reading
from nnterp.vocabulary.names import Place


class Store(Protocol):
    """Where rows that were picked go."""

    def make(self, count: int, rows: Tensor) -> Tensor:
        """Memory for one place's result: ``count`` rows like these."""

    def put(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        """Have ``rows``, as they are now, at ``targets`` of ``into`` in the end.

        Rows that are live are copied before this returns, in the order of the forward's own
        kernels, or as ``rows.copied()``.
        """


class NullStore(Store):
    """For a process that reads along with others, and whose rows are not wanted."""

    def make(self, count: int, rows: Tensor) -> Tensor:
        return torch.empty(count, *rows.shape[1:], dtype=rows.dtype, device="meta")

    def put(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        """Nothing."""


class Gather:
    """What is collected of a set of prompts.

    Args:
        wanted: The selection at each place.
        store: Where the rows go.
    """

    def __init__(self, wanted: Mapping[Place, Selection], store: Store) -> None:
        self.wanted = wanted
        self._store = store
        self._results: dict[Place, Tensor] = {}
        self._picks: dict[int, Picked] = {}
        self._sums: dict[tuple[Place, int], Tensor] = {}
        self._spans: Sequence[Span] = ()
        self._a_row_each = False

    def enter(self, spans: Sequence[Span], a_row_each: bool = False) -> None:
        """A forward begins, with ``spans`` of the prompts' tokens in its rows.

        Args:
            spans: The prompts' spans.
            a_row_each: Whether a prompt has one row, its last token's, however many it has.
        """
        self._spans = spans
        self._a_row_each = a_row_each
        self._picks.clear()

    def add(self, place: Place, read: Callable[[Picked], Reading]) -> None:
        """Keep this forward's rows of ``place``.

        Args:
            place: One of those wanted.
            read: From the rows picked to those rows of the value, ``[rows, ...]``.
        """
        selection = self.wanted[place]
        if id(selection) not in self._picks:
            self._picks[id(selection)] = selection.pick(self._spans)
        picked = self._picks[id(selection)]
        if not picked.count:
            return
        rows = read(picked)
        if isinstance(selection, Mean):
            self._average(place, selection, rows.tensor)
            return
        result = self._result(place, sum(selection.counts()), rows.tensor)
        self._store.put(rows, result, picked.targets)

    def apply(self, place: Place, read: Callable[[Span], Tensor]) -> None:
        """Keep what the function at ``place`` makes of each prompt of this forward.

        Args:
            place: One of those wanted, whose selection is an `Apply`.
            read: From a prompt's span to a copy of its value, in the layout of a trace, batch 1.
        """
        selection = self.wanted[place]
        assert isinstance(selection, Apply)
        for span in self._spans:
            length = selection.lengths[span.prompt]
            if self._a_row_each:
                if span.first + span.length < length:
                    continue  # its last token is in a step to come
            elif span.length < length:
                raise ValueError(
                    f"{place} goes through a function, which needs a prompt whole, and this "
                    "engine splits prompts over steps; load it without enable_chunked_prefill"
                )
            made = selection.function(read(span))
            if not isinstance(made, Tensor):
                raise TypeError(f"the function for {place} returned {made!r}, not a tensor")
            row = made.detach()[None]
            result = self._result(place, len(selection.lengths), row)
            if made.shape != result.shape[1:]:
                raise ValueError(
                    f"the function for {place} returned shape {tuple(made.shape)} for prompt "
                    f"{span.prompt}, and {tuple(result.shape[1:])} for one before"
                )
            one = slice(span.prompt, span.prompt + 1)
            # Of the caller's function, which may keep what it returned.
            self._store.put(Reading(row), result, one)

    def results(self) -> dict[Place, Tensor]:
        """What was kept at each place; nothing for one that no forward has reached."""
        return self._results

    def _average(self, place: Place, selection: Mean, rows: Tensor) -> None:
        counts = torch.tensor([span.length for span in self._spans])
        owners = torch.repeat_interleave(counts).to(rows.device, non_blocking=True)
        shape = rows.shape[1:]
        sums = rows.new_zeros((len(counts), *shape), dtype=torch.float32)
        sums.index_add_(0, owners, rows.float())
        result = self._result(place, len(selection.lengths), sums)
        done: list[int] = []
        for index, (prompt, _, first, count) in enumerate(self._spans):
            if first:
                sums[index] += self._sums.pop((place, prompt))
            if first + count == selection.lengths[prompt]:
                done.append(index)
            else:
                self._sums[place, prompt] = sums[index]
        if done:
            prompts = [self._spans[index].prompt for index in done]
            lengths = torch.tensor([selection.lengths[prompt] for prompt in prompts])
            divisors = lengths.to(rows.device).view(-1, *[1] * len(shape))
            means = Reading(sums[done] / divisors, is_new_tensor=True)
            self._store.put(means, result, torch.tensor(prompts))

    def _result(self, place: Place, count: int, rows: Tensor) -> Tensor:
        if place not in self._results:
            self._results[place] = self._store.make(count, rows)
        return self._results[place]
