"""Selects which of each prompt's positions to keep.

On either engine, a forward holds one row per token, and each prompt in it a span of the rows. A
`Selection` says which rows of a span are kept, and where they go among the rows kept of all
prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

#: What a caller may write for the positions of a value.
Positions = str | int | Sequence[Any] | Tensor | Callable[[Tensor], Tensor]

#: Describes `Positions` in error messages.
_CHOICES = (
    "'last', 'all' or 'mean', a position, a position or a mask for each prompt, or a function of "
    "the value"
)


class Span(NamedTuple):
    """A `Span` is a prompt's rows in a forward.

    Attributes:
        prompt: The prompt's index.
        start: The index of its first row.
        first: The position, in the prompt, of the token in that row.
        length: The number of rows, which is the number of tokens.
    """

    prompt: int
    start: int
    first: int
    length: int


class Picked:
    """`Picked` holds indices of rows of a forward, and of the rows of the result they become.

    Args:
        rows: Where each run of adjacent rows begins in the forward.
        targets: Where each run begins in the result.
        counts: The length of each run.

    Attributes:
        count: The number of rows in all.
        targets: The indices of the rows in the result: a slice, or ``[count]``.
    """

    def __init__(self, rows: list[int], targets: list[int], counts: list[int]) -> None:
        self.count = sum(counts)
        self.targets = _indices(targets, counts)
        self._rows = _indices(rows, counts)
        self._on: dict[torch.device, Tensor] = {}

    def take(self, tensor: Tensor, axis: int) -> Tensor:
        """Return the picked rows of ``tensor``, whose ``axis`` is its rows; a view if adjacent."""
        if isinstance(self._rows, slice):
            return tensor.narrow(axis, self._rows.start, self.count)
        if tensor.device not in self._on:
            self._on[tensor.device] = self._rows.to(tensor.device, non_blocking=True)
        return tensor.index_select(axis, self._on[tensor.device])


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
        """Return the number of rows kept of each prompt."""

    def pick(self, spans: Sequence[Span]) -> Picked:
        """Return the rows of a forward to keep, and where they go in the result."""


class At(Selection):
    """`At` selects one position of each prompt, counted from the end if negative.

    Args:
        positions: The position in each prompt.
        lengths: The number of tokens of each prompt.

    Raises:
        ValueError: There are not as many positions as prompts.
        IndexError: A prompt has no such position.
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
        """Return whether the last position of every prompt is selected."""
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
    """`Where` selects the positions where a mask is true.

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
    """`All` selects every position.

    Args:
        lengths: The number of tokens of each prompt.
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
    """`Mean` selects the mean over every position, in float32.

    Args:
        lengths: The number of tokens of each prompt.
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
    """`Apply` keeps what a function returns for a prompt's value.

    Args:
        function: Takes the value as a trace would serve it, with batch 1, and returns a tensor of
            one shape for all prompts.
        lengths: The number of tokens of each prompt.
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
    """Return the selection that a caller means by ``positions``.

    Args:
        positions: ``"last"``, ``"all"``, ``"mean"``, a position, a position or a mask of
            ``[tokens]`` for each prompt, or a function of the value.
        lengths: The number of tokens of each prompt.

    Raises:
        IndexError: A prompt has no such position.
        ValueError: ``positions`` is another word, has another length than the prompts, or holds a
            mask of another length than its prompt.
        TypeError: ``positions`` is none of these kinds.
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
    """Return whether ``given`` is one integer, and not a truth value."""
    whole = not (given.dtype == torch.bool or given.is_floating_point() or given.is_complex())
    return given.ndim == 0 and whole
