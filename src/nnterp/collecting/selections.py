"""Which of a prompt's positions to keep.

Whatever the engine, a forward holds one row a token, and each prompt in it a span of the
rows. A `Selection` says which rows of a span are kept, and where they go among the rows
kept of all prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

#: What a caller may write for the positions of a value.
Positions = str | int | Sequence[Any] | Tensor | Callable[[Tensor], Tensor]

#: The same, in words.
_CHOICES = (
    "'last', 'all' or 'mean', a position, a position or a mask for each prompt, or a function of "
    "the value"
)


class Span(NamedTuple):
    """A prompt's rows in a forward.

    Attributes:
        prompt: The prompt's index.
        start: Its first row.
        first: The position of the token in that row.
        length: How many rows, and tokens, there are.
    """

    prompt: int
    start: int
    first: int
    length: int


class Picked:
    """Rows of a forward, and the rows of the result they become.

    Args:
        rows: Where each run of rows begins in the forward.
        targets: Where it goes in the result.
        counts: How long it is.
    """

    def __init__(self, rows: list[int], targets: list[int], counts: list[int]) -> None:
        self.count = sum(counts)
        self.targets = _indices(targets, counts)
        self._rows = _indices(rows, counts)
        self._on: dict[torch.device, Tensor] = {}

    def take(self, tensor: Tensor, axis: int) -> Tensor:
        """The rows out of ``tensor``, which has them on ``axis``; a view where they adjoin."""
        if isinstance(self._rows, slice):
            return tensor.narrow(axis, self._rows.start, self.count)
        if tensor.device not in self._on:
            self._on[tensor.device] = self._rows.to(tensor.device, non_blocking=True)
        return tensor.index_select(axis, self._on[tensor.device])


def _indices(starts: list[int], counts: list[int]) -> slice | Tensor:
    """The indices in runs of ``counts`` from ``starts``; a slice if they are one run."""
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    if starts[1:] == ends[:-1]:
        return slice(starts[0], ends[-1]) if starts else slice(0, 0)
    begin, length = torch.tensor(starts), torch.tensor(counts)
    before = length.cumsum(0) - length
    return torch.repeat_interleave(begin - before, length) + torch.arange(sum(counts))


class Selection(Protocol):
    """The positions kept of each prompt."""

    #: Whether a prompt keeps several rows, or none, rather than one.
    ragged: bool

    def counts(self) -> list[int]:
        """The rows kept of each prompt."""

    def pick(self, spans: Sequence[Span]) -> Picked:
        """The rows of a forward to keep, and where to."""


class At(Selection):
    """One position of each prompt, counted from the end if negative.

    Args:
        positions: The position in each.
        lengths: The tokens of each.
    """

    ragged = False

    def __init__(self, positions: Sequence[int], lengths: Sequence[int]) -> None:
        if len(positions) != len(lengths):
            raise ValueError(f"there are {len(positions)} positions for {len(lengths)} prompts")
        pairs = list(zip(positions, lengths, strict=True))
        for prompt, (position, length) in enumerate(pairs):
            if not -length <= position < length:
                raise IndexError(f"prompt {prompt} has {length} tokens and no position {position}")
        self._positions = [position % length for position, length in pairs]

    def is_last(self, lengths: Sequence[int]) -> bool:
        """Whether it is the last position of every prompt."""
        return all(p == length - 1 for p, length in zip(self._positions, lengths, strict=True))

    def counts(self) -> list[int]:
        return [1] * len(self._positions)

    def pick(self, spans: Sequence[Span]) -> Picked:
        rows, targets = [], []
        for prompt, start, first, count in spans:
            within = self._positions[prompt] - first
            if 0 <= within < count:
                rows.append(start + within)
                targets.append(prompt)
        return Picked(rows, targets, [1] * len(rows))


class Where(Selection):
    """The positions where a mask is true.

    Args:
        masks: ``[tokens]`` for each prompt.
    """

    ragged = True

    def __init__(self, masks: Sequence[Tensor]) -> None:
        self._masks = masks
        kept = torch.tensor(self.counts())
        self._offsets = (kept.cumsum(0) - kept).tolist()

    def counts(self) -> list[int]:
        return [int(mask.sum()) for mask in self._masks]

    def pick(self, spans: Sequence[Span]) -> Picked:
        rows: list[int] = []
        targets: list[int] = []
        for prompt, start, first, count in spans:
            mask = self._masks[prompt]
            before = self._offsets[prompt] + int(mask[:first].sum())
            within = mask[first : first + count].nonzero()[:, 0] + start
            rows += within.tolist()
            targets += range(before, before + len(within))
        return Picked(rows, targets, [1] * len(rows))


class All(Selection):
    """Every position.

    Args:
        lengths: The tokens of each prompt.
    """

    ragged = True

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self._offsets = [0]
        for length in lengths:
            self._offsets.append(self._offsets[-1] + length)

    def counts(self) -> list[int]:
        return self._lengths

    def pick(self, spans: Sequence[Span]) -> Picked:
        return Picked(
            [span.start for span in spans],
            [self._offsets[span.prompt] + span.first for span in spans],
            [span.length for span in spans],
        )


class Mean(Selection):
    """The mean over every position, in float32.

    Args:
        lengths: The tokens of each prompt.
    """

    ragged = False

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def counts(self) -> list[int]:
        return [1] * len(self.lengths)

    def pick(self, spans: Sequence[Span]) -> Picked:
        counts = [span.length for span in spans]
        return Picked([span.start for span in spans], [0] * len(spans), counts)


class Apply(Selection):
    """What a function makes of a prompt's value.

    Args:
        function: From the value as a trace would serve it, batch 1, to a tensor of one shape
            for all prompts.
        lengths: The tokens of each prompt.
    """

    ragged = False

    def __init__(self, function: Callable[[Tensor], Tensor], lengths: Sequence[int]) -> None:
        self.function = function
        self.lengths = list(lengths)

    def counts(self) -> list[int]:
        return [1] * len(self.lengths)

    def pick(self, spans: Sequence[Span]) -> Picked:
        return Picked([], [], [])


def selection(positions: Positions, lengths: Sequence[int]) -> Selection:
    """The selection a caller means by ``positions``.

    Args:
        positions: ``"last"``, ``"all"``, ``"mean"``, a position, a position or a mask for each
            prompt, or a function of the value.
        lengths: The tokens of each prompt.

    Raises:
        IndexError: A prompt has no such position.
        ValueError: The word is none of these, or a mask has another length than its prompt.
        TypeError: It is nothing of the kind.
    """
    if isinstance(positions, str):
        if positions == "last":
            return At([-1] * len(lengths), lengths)
        if positions in ("all", "mean"):
            return All(lengths) if positions == "all" else Mean(lengths)
        raise ValueError(f"{positions!r} is no choice of positions; write {_CHOICES}")
    if hasattr(positions, "tolist"):  # of a tensor or an array
        positions = positions.tolist()
    if isinstance(positions, int) and not isinstance(positions, bool):
        return At([positions] * len(lengths), lengths)
    if callable(positions):
        return Apply(positions, lengths)
    if not isinstance(positions, Sequence):
        raise TypeError(f"positions are {_CHOICES}, not a {type(positions).__name__}")
    each = [torch.as_tensor(one).cpu() for one in positions]
    if each and all(_is_position(one) for one in each):
        return At([int(one) for one in each], lengths)
    if len(each) != len(lengths):
        raise ValueError(f"there are {len(each)} masks for {len(lengths)} prompts")
    masks = [mask.bool() for mask in each]
    for prompt, (mask, length) in enumerate(zip(masks, lengths, strict=True)):
        if mask.shape != (length,):
            raise ValueError(
                f"the mask of prompt {prompt} has shape {tuple(mask.shape)}, and the prompt "
                f"{length} tokens"
            )
    return Where(masks)


def _is_position(given: Tensor) -> bool:
    """Whether ``given`` is one whole number, and not a truth value."""
    whole = not (given.dtype == torch.bool or given.is_floating_point() or given.is_complex())
    return given.ndim == 0 and whole
