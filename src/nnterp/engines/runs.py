"""Defines a run: prompts, with what is read and edited in them, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from nnterp.collecting.collected import Collected
from nnterp.collecting.selections import Selection
from nnterp.editing.request import Changes
from nnterp.records.positions import Length
from nnterp.vocabulary.names import Place


@dataclass(frozen=True)
class Job:
    """A `Job` is what an engine is to do for a run, checked beforehand.

    Attributes:
        ids: The token ids of each prompt.
        max_tokens: The most tokens to generate for each.
        generates: Whether the generated tokens are wanted, and not only what is read.
        wanted: The selection at each place that is read.
        changes: The changes of each prompt at each place that is edited.
        batch_size: The most prompts at a time, or None.
        advance: Called with the number of prompts that are done, every few.
        lora_request: On vLLM, the adapters of the prompts.
        settings: Further settings of the generation, as the engine calls them.
    """

    ids: Sequence[list[int]]
    max_tokens: int
    generates: bool
    wanted: Mapping[Place, Selection]
    changes: Changes
    batch_size: int | None
    advance: Callable[[int], Any]
    lora_request: Any
    settings: Mapping[str, Any]

    @property
    def lengths(self) -> list[Length]:
        """Return the length of each prompt's sequence."""
        return [Length(len(own), len(own) + self.max_tokens - 1) for own in self.ids]


class Outcome(NamedTuple):
    """An `Outcome` is what came of a job.

    Attributes:
        rows: What was kept at each place, ``[rows, ...]``, with room for every step.
        tokens: The tokens generated for each prompt, with the one that ended it, if one did.
        texts: What they say, without special tokens.
    """

    rows: Mapping[Place, Tensor]
    tokens: Sequence[list[int]]
    texts: Sequence[str]


@dataclass(frozen=True)
class Run:
    """A `Run` is what came of prompts that were run with reads and edits.

    ``run[name]`` is what was read of a value, as of a `Collected`.

    Attributes:
        texts: What was generated for each prompt, without special tokens.
        tokens: The ids of the generated tokens of each prompt, with the one that ended it.
        values: What was read, in the order of the prompts.
    """

    texts: list[str]
    tokens: list[list[int]]
    values: Collected

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __repr__(self) -> str:
        shown = [f"{index}: {text!r}" for index, text in enumerate(self.texts[:8])]
        more = len(self.texts) - len(shown)
        lines = [*shown, *([f"... and {more} more"] if more else [])]
        return "\n".join([*lines, *([repr(self.values)] if len(self.values) else [])])
