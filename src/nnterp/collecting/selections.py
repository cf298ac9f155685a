"""Selects which of each prompt's positions to keep.

On either engine, a forward holds one row per token, and each prompt in it a span of the rows. A
`Selection` says which rows of a span are kept, and where they go among the rows kept of all
prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nnterp.records.positions import (
    WORDS,
    Length,
    Positions,
    Range,
    Ranges,
    Steps,
    both,
    count,
    of_each,
    of_steps,
)

#: Describes `Positions` in error messages.
_CHOICES = (
    "'last', 'all' or 'mean', 'prompt' or 'generated', a position, positions or a mask for each "
    "prompt, or a function of the value"
)


class Span(NamedTuple):
    """A `Span` is a prompt's rows in a forward.

    Attributes:
        prompt: The prompt's index.
        start: The index of its first row.
        first: The position, in the sequence, of the token in that row.
        length: The number of rows, which is the number of tokens.
    """

    prompt: int
    start: int
    first: int
    length: int


class Rows:
    """`Rows` holds indices of rows of a forward.

    Args:
        starts: Where each run of adjacent rows begins.
        counts: The length of each run.

    Attributes:
        count: The number of rows in all.
    """

    def __init__(self, starts: list[int], counts: list[int]) -> None:
        self.count = sum(counts)
        self._rows = _indices(starts, counts)
        self._on: dict[torch.device, Tensor] = {}

    def take(self, tensor: Tensor, axis: int) -> Tensor:
        """Return the rows of ``tensor``, whose ``axis`` is its rows; a view if adjacent."""
        if isinstance(self._rows, slice):
            return tensor.narrow(axis, self._rows.start, self.count)
        return tensor.index_select(axis, self.index(tensor.device))

    def put(self, rows: Tensor, into: Tensor, axis: int) -> None:
        """Write ``rows`` to the rows of ``into``, whose ``axis`` is its rows."""
        if isinstance(self._rows, slice):
            into.narrow(axis, self._rows.start, self.count).copy_(rows)
        else:
            into.index_copy_(axis, self.index(into.device), rows)

    def index(self, device: torch.device) -> Tensor:
        """Return the indices on ``device``, ``[count]``."""
        if device not in self._on:
            rows = self._rows
            own = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            self._on[device] = own.to(device, non_blocking=True)
        return self._on[device]


class Picked(Rows):
    """`Picked` holds indices of rows of a forward, and of the rows of the result they become.

    Args:
        rows: Where each run of adjacent rows begins in the forward.
        targets: Where each run begins in the result.
        counts: The length of each run.

    Attributes:
        targets: The indices of the rows in the result: a slice, or ``[count]``.
    """

    def __init__(self, rows: list[int], targets: list[int], counts: list[int]) -> None:
        super().__init__(rows, counts)
        self.targets = _indices(targets, counts)


def _indices(starts: list[int], counts: list[int]) -> slice | Tensor:
    """Return the indices in runs of ``counts`` from ``starts``: a slice if they are one run.

    Otherwise they are a tensor, ``[sum of counts]``.
    """
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    if starts[1:] == ends[:-1]:
        return slice(starts[0], ends[-1]) if starts else slice(0, 0)
    begin, length = torch.tensor(starts), torch.tensor(counts)
    before = length.cumsum(0) - length
    return torch.repeat_interleave(begin - before, length) + torch.arange(sum(counts))


class Selection(Protocol):
    """A `Selection` says which positions of each prompt are kept."""

    #: Whether a prompt keeps several rows, or none, rather than one.
    ragged: bool

    def counts(self) -> list[int]:
        """Return the number of rows kept of each prompt, if every step is made."""

    def within(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Return the parts of ``spans`` that this selection is about."""
        return spans

    def pick(self, spans: Sequence[Span]) -> Picked:
        """Return the rows of a forward to keep, and where they go in the result."""


class Kept(Selection):
    """`Kept` selects the positions in some ranges.

    Args:
        ranges: The positions of each prompt.
        lengths: The length of each prompt's sequence.
        ragged: Whether prompts may keep different numbers of rows.
    """

    def __init__(
        self, ranges: Sequence[Ranges], lengths: Sequence[Length], ragged: bool = True
    ) -> None:
        self.ragged = ragged
        self._ranges = [
            both(own, (Range(0, length.run),)) for own, length in zip(ranges, lengths, strict=True)
        ]
        self._prompts = [length.prompt for length in lengths]
        self._offsets = [0]
        for number in self.counts():
            self._offsets.append(self._offsets[-1] + number)

    @property
    def is_last(self) -> bool:
        """Return whether no position is selected but the last of a step."""
        pairs = zip(self._ranges, self._prompts, strict=True)
        return all(start >= prompt - 1 for own, prompt in pairs for start, _ in own)

    def counts(self) -> list[int]:
        return [sum(stop - start for start, stop in own) for own in self._ranges]

    def counts_of(self, run: Sequence[int]) -> list[int]:
        """Return the number of rows kept of each prompt when ``run`` of its tokens are run."""
        return [count(own, tokens) for own, tokens in zip(self._ranges, run, strict=True)]

    def pick(self, spans: Sequence[Span]) -> Picked:
        rows: list[int] = []
        targets: list[int] = []
        counts: list[int] = []
        for prompt, row, first, length in spans:
            target, end = self._offsets[prompt], first + length
            for start, stop in self._ranges[prompt]:
                if start >= end:
                    break
                begin, over = max(start, first), min(stop, end)
                if begin < over:
                    rows.append(row + begin - first)
                    targets.append(target + begin - start)
                    counts.append(over - begin)
                target += stop - start
        return Picked(rows, targets, counts)


class OfPrompt(Selection):
    """`OfPrompt` is the base of selections that make one row of a whole prompt.

    Args:
        lengths: The number of tokens of each prompt.
    """

    ragged = False

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def counts(self) -> list[int]:
        return [1] * len(self.lengths)

    def within(self, spans: Sequence[Span]) -> Sequence[Span]:
        clipped = (
            span._replace(length=min(span.length, self.lengths[span.prompt] - span.first))
            for span in spans
        )
        return [span for span in clipped if span.length > 0]

    def pick(self, spans: Sequence[Span]) -> Picked:
        counts = [span.length for span in spans]
        return Picked([span.start for span in spans], [0] * len(spans), counts)


class Mean(OfPrompt):
    """`Mean` selects the mean over every position of the prompt, in float32."""


class Apply(OfPrompt):
    """`Apply` keeps what a function returns for a prompt's value.

    Args:
        function: Takes the value as a trace would serve it, with batch 1, and returns a tensor of
            one shape for all prompts.
        lengths: The number of tokens of each prompt.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], lengths: Sequence[int]) -> None:
        super().__init__(lengths)
        self.function = function


def selection(positions: Positions, lengths: Sequence[Length], steps: Steps = None) -> Selection:
    """Return the selection that a caller means by ``positions``.

    Args:
        positions: ``"last"``, ``"all"``, ``"prompt"``, ``"generated"``, ``"mean"``, a position;
            for each prompt a position, several, or a mask of ``[tokens]``; or a function of the
            value.
        lengths: The length of each prompt's sequence.
        steps: The steps to keep them of, as `of_steps` takes them.

    Raises:
        IndexError: A prompt has no such position.
        ValueError: ``positions`` is another word, has another length than the prompts, or holds a
            mask of another length than its prompt; or ``steps`` are not valid.
        TypeError: ``positions`` or ``steps`` are none of these kinds.
    """
    if hasattr(positions, "tolist"):
        positions = positions.tolist()
    if positions == "mean" or callable(positions):
        if steps is not None:
            raise ValueError("a mean or a function is of the whole prompt; leave steps out")
        prompts = [length.prompt for length in lengths]
        return Apply(positions, prompts) if callable(positions) else Mean(prompts)
    if isinstance(positions, str) and positions not in WORDS:
        raise ValueError(f"{positions!r} is no choice of positions; write {_CHOICES}")
    if isinstance(positions, bool) or not isinstance(positions, int | Sequence):
        raise TypeError(f"positions are {_CHOICES}, not a {type(positions).__name__}")
    each = zip(of_each(positions, lengths), lengths, strict=True)
    chosen = [both(own, of_steps(steps, length)) for own, length in each]
    return Kept(chosen, lengths, ragged=not _one_each(positions, steps, lengths))


def _one_each(positions: Positions, steps: Steps, lengths: Sequence[Length]) -> bool:
    """Return whether each prompt is sure to keep one row, whenever its generation ends."""
    if steps not in (None, 0):
        return False
    if positions == "last":
        return steps == 0 or all(length.run == length.prompt for length in lengths)
    if isinstance(positions, int):
        return True
    if not isinstance(positions, Sequence) or isinstance(positions, str):
        return False
    return all(isinstance(one, int) or getattr(one, "ndim", None) == 0 for one in positions)
