"""Says which positions of a sequence are meant, in the words that a caller may write.

A sequence is a prompt and what is generated after it. The first step of a generation runs every
token of the prompt, and each later step one token more, so the last token that is generated is
never run. Positions count from the prompt's first token, and steps from the prompt's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

#: What a caller may write for the positions of a value.
Positions = str | int | Sequence[Any] | Tensor | Callable[[Tensor], Tensor]

#: What a caller may write for the steps of a generation; None stands for all of them.
Steps = int | Sequence[int] | slice | None

#: The words for positions.
WORDS = ("last", "all", "prompt", "generated")

#: Describes the positions of one sequence in error messages.
_CHOICES = "'last', 'all', 'prompt' or 'generated', a position, several, or a mask of bools"

_END = sys.maxsize


class Length(NamedTuple):
    """A `Length` is the number of a sequence's tokens.

    Attributes:
        prompt: The number of tokens of the prompt.
        run: The number of tokens that steps run at most: those of the prompt, and those generated
            but the last.
    """

    prompt: int
    run: int


class Range(NamedTuple):
    """A `Range` is a run of adjacent positions of a sequence.

    Attributes:
        start: The first position.
        stop: The position after the last.
    """

    start: int
    stop: int


#: The positions meant of one sequence, in order and apart.
Ranges = tuple[Range, ...]


def of_each(positions: Any, lengths: Sequence[Length]) -> list[Ranges]:
    """Return what is meant by ``positions`` in each of several sequences.

    Args:
        positions: A word, a position, or for each sequence what `of_one` takes.
        lengths: The length of each sequence.

    Raises:
        ValueError: There are not as many as sequences, or one is not valid.
        IndexError: A prompt has no such position.
        TypeError: It is none of these kinds.
    """
    listed = positions.tolist() if hasattr(positions, "tolist") else positions
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        return [of_one(listed, length, index) for index, length in enumerate(lengths)]
    items = [item.tolist() if hasattr(item, "tolist") else item for item in listed]
    if len(items) != len(lengths):
        kind = "positions" if all(_is_position(item) for item in items) else "masks"
        raise ValueError(f"there are {len(items)} {kind} for {len(lengths)} prompts")
    pairs = zip(items, lengths, strict=True)
    found = []
    for index, (item, length) in enumerate(pairs):
        if isinstance(item, bool | float):
            item = [bool(item)]  # too few for any prompt, and refused as such
        found.append(of_one(item, length, index))
    return found


def of_one(positions: Any, length: Length, prompt: int = 0) -> Ranges:
    """Return what is meant by ``positions`` in one sequence.

    Args:
        positions: ``"last"``, the last position of each step; ``"all"``; ``"prompt"``;
            ``"generated"``; a position of the prompt, counted from its end if negative; several
            of them; or a mask of bools, ``[tokens]``.
        length: The length of the sequence.
        prompt: The prompt's index, for error messages.

    Raises:
        ValueError: It is another word, a position is named twice, or a mask is not as long as the
            prompt.
        IndexError: The prompt has no such position.
        TypeError: It is none of these kinds.
    """
    if hasattr(positions, "tolist"):
        positions = positions.tolist()
    if isinstance(positions, str):
        if positions not in WORDS:
            raise ValueError(f"{positions!r} is no choice of positions; write {_CHOICES}")
        start = {"last": length.prompt - 1, "generated": length.prompt}.get(positions, 0)
        return (Range(start, length.prompt if positions == "prompt" else _END),)
    if _is_position(positions):
        return _joined([_within(positions, length, prompt)])
    if not isinstance(positions, Sequence):
        raise TypeError(f"positions are {_CHOICES}, not a {type(positions).__name__}")
    if all(_is_position(item) for item in positions):
        chosen = sorted(_within(position, length, prompt) for position in positions)
        if len(set(chosen)) != len(chosen):
            raise ValueError(
                f"the positions of prompt {prompt} name one twice: {list(positions)}; a mask is of "
                "bools, as by mask.bool()"
            )
        return _joined(chosen)
    if len(positions) != length.prompt or not all(isinstance(item, bool) for item in positions):
        raise ValueError(
            f"the mask of prompt {prompt} has shape ({len(positions)},), and the prompt "
            f"{length.prompt} tokens; a mask is a bool for each"
        )
    return _joined([index for index, chosen in enumerate(positions) if chosen])


def of_steps(steps: Steps, length: Length) -> Ranges:
    """Return the positions that the forwards of ``steps`` run.

    Args:
        steps: A step, several, a slice of them, or None for all.
        length: The length of the sequence.

    Raises:
        ValueError: A step is negative, or a slice is not of adjacent steps.
        TypeError: It is none of these kinds.
    """
    if steps is None:
        return (Range(0, _END),)
    if isinstance(steps, slice):
        start, stop = steps.start or 0, _END if steps.stop is None else steps.stop
        if start < 0 or stop < 0 or steps.step not in (None, 1):
            raise ValueError(f"steps are counted from the prompt's, 0, and one by one, not {steps}")
        first = 0 if not start else length.prompt + start - 1
        last = _END if stop == _END else length.prompt + stop - 1
        return (Range(first, last),) if start < stop else ()
    listed = [steps] if isinstance(steps, int) else steps
    if not isinstance(listed, Sequence) or not all(_is_position(step) for step in listed):
        raise TypeError(f"steps are a step, several, a slice or None, not {steps!r}")
    if any(step < 0 for step in listed):
        raise ValueError(f"steps are counted from the prompt's, which is 0: {steps!r}")
    ranges = [
        Range(length.prompt + step - 1, length.prompt + step) if step else Range(0, length.prompt)
        for step in sorted(set(listed))
    ]
    return tuple(ranges)


def both(one: Ranges, other: Ranges) -> Ranges:
    """Return the positions that are in both ``one`` and ``other``."""
    common = (
        Range(max(a.start, b.start), min(a.stop, b.stop))
        for a in one
        for b in other
        if max(a.start, b.start) < min(a.stop, b.stop)
    )
    return tuple(sorted(common))


def count(ranges: Ranges, run: int) -> int:
    """Return how many positions of ``ranges`` are among the first ``run``."""
    return sum(max(0, min(stop, run) - start) for start, stop in ranges)


def _joined(positions: Iterable[int]) -> Ranges:
    """Return sorted ``positions`` as ranges."""
    ranges: list[Range] = []
    for position in positions:
        if ranges and ranges[-1].stop == position:
            ranges[-1] = Range(ranges[-1].start, position + 1)
        else:
            ranges.append(Range(position, position + 1))
    return tuple(ranges)


def _within(position: int, length: Length, prompt: int) -> int:
    """Return ``position`` of the prompt, counted from its first token."""
    if not -length.prompt <= position < length.prompt:
        raise IndexError(f"prompt {prompt} has {length.prompt} tokens and no position {position}")
    return position % length.prompt


def _is_position(given: Any) -> bool:
    """Return whether ``given`` is an integer, and not a truth value."""
    return isinstance(given, int) and not isinstance(given, bool)
