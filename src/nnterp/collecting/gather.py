"""Assembles the rows that forwards produce into the results of `collect`.

Each engine runs forwards its own way and shows a `Gather`, for each place asked for, the rows
that each forward produced. A result's memory is allocated when the first rows show how wide they
are; the engine chooses where it is, because another process may have to see it.
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
    """A `Store` allocates results, and writes the rows that were picked into them."""

    def make(self, count: int, rows: Tensor) -> Tensor:
        """Return memory for one place's result: ``[count, ...]``, for rows like ``rows``.

        Args:
            count: The number of rows of the result.
            rows: Some of its rows, ``[rows, ...]``.
        """

    def put(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        """Write ``rows``, as they are now, to ``targets`` of ``into`` before the run is over.

        Rows that are live are copied before this returns, either in stream order with the forward's
        own kernels, or as ``rows.copied()``.

        Args:
            rows: ``[rows, ...]``.
            into: The result, ``[count, ...]``, from `make`.
            targets: The indices of the rows in the result.
        """


class NullStore(Store):
    """`NullStore` discards rows, for a process that reads along with others and has no results."""

    def make(self, count: int, rows: Tensor) -> Tensor:
        return torch.empty(count, *rows.shape[1:], dtype=rows.dtype, device="meta")

    def put(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        """Discard ``rows``."""


class Gather:
    """A `Gather` collects the wanted values of a set of prompts, one forward after another.

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
        self._parts: dict[tuple[Place, int], list[Tensor]] = {}
        self._spans: Sequence[Span] = ()
        self._a_row_each = False

    def enter(self, spans: Sequence[Span], a_row_each: bool = False) -> None:
        """Begin a forward whose rows hold ``spans`` of the prompts' tokens.

        Args:
            spans: The prompts' spans.
            a_row_each: Whether each prompt has one row, its last token's, whatever its number of
                tokens.
        """
        self._spans = spans
        self._a_row_each = a_row_each
        self._picks.clear()

    def add(self, place: Place, read: Callable[[Picked], Reading]) -> None:
        """Keep this forward's rows of ``place``.

        Args:
            place: One of those wanted.
            read: Returns the value's rows, ``[rows, ...]``, for the rows picked.
        """
        selection = self.wanted[place]
        if id(selection) not in self._picks:
            self._picks[id(selection)] = selection.pick(selection.within(self._spans))
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
        """Keep what the function at ``place`` returns for each prompt of this forward.

        Args:
            place: One of those wanted, whose selection is an `Apply`.
            read: Returns a copy of a prompt's value for its span, in a trace's layout, batch 1.

        Of a prompt that the engine splits over forwards, the value is assembled.

        Raises:
            ValueError: The forward holds a part of a prompt, whose value has a column for each of
                its keys; or the function returned two shapes.
            TypeError: The function returned no tensor.
        """
        selection = self.wanted[place]
        assert isinstance(selection, Apply)
        for span in selection.within(self._spans):
            length = selection.lengths[span.prompt]
            if self._a_row_each:
                if span.first + span.length < length:
                    continue  # its last token is in a step to come
                whole: Tensor | None = read(span)
            else:
                whole = self._assembled(place, span, read(span), length)
            if whole is None:
                continue
            made = selection.function(whole)
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
            # Not a new tensor, because the caller's function may keep what it returned.
            self._store.put(Reading(row), result, one)

    def _assembled(self, place: Place, span: Span, value: Tensor, length: int) -> Tensor | None:
        """Return a prompt's whole value, or None while parts of it are in forwards to come.

        Args:
            place: The place.
            span: The prompt's rows in this forward.
            value: The value of these rows, in the layout of a trace with batch 1.
            length: The number of the prompt's tokens.
        """
        if span.length == length:
            return value
        axis = place.value.token_axis
        if axis is None or "key" in place.value.axes:
            raise ValueError(
                f"{place} goes through a function, which needs a prompt whole, and this engine "
                "splits prompts over steps; load it without enable_chunked_prefill"
            )
        # An evicted prompt begins anew.
        parts = self._parts.setdefault((place, span.prompt), []) if span.first else []
        self._parts[place, span.prompt] = [*parts, value]
        if span.first + span.length < length:
            return None
        return torch.cat(self._parts.pop((place, span.prompt)), axis)

    def results(self) -> dict[Place, Tensor]:
        """Return the rows kept at each place; a place that no forward has reached is left out."""
        return self._results

    def _average(self, place: Place, selection: Mean, rows: Tensor) -> None:
        """Add ``rows``, ``[tokens, ...]``, to prompts' sums; store means of finished prompts."""
        spans = selection.within(self._spans)
        counts = torch.tensor([span.length for span in spans])
        owners = torch.repeat_interleave(counts).to(rows.device, non_blocking=True)
        shape = rows.shape[1:]
        sums = rows.new_zeros((len(counts), *shape), dtype=torch.float32)
        sums.index_add_(0, owners, rows.float())
        result = self._result(place, len(selection.lengths), sums)
        done: list[int] = []
        for index, (prompt, _, first, count) in enumerate(spans):
            if first:
                sums[index] += self._sums.pop((place, prompt))
            if first + count == selection.lengths[prompt]:
                done.append(index)
            else:
                self._sums[place, prompt] = sums[index]
        if done:
            prompts = [spans[index].prompt for index in done]
            lengths = torch.tensor([selection.lengths[prompt] for prompt in prompts])
            divisors = lengths.to(rows.device).view(-1, *[1] * len(shape))
            means = Reading(sums[done] / divisors, is_new_tensor=True)
            self._store.put(means, result, torch.tensor(prompts))

    def _result(self, place: Place, count: int, rows: Tensor) -> Tensor:
        """Return the result of ``place``, at first allocating ``count`` rows like ``rows``."""
        if place not in self._results:
            self._results[place] = self._store.make(count, rows)
        return self._results[place]
