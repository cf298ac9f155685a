"""Defines what an engine's compiled forward reads and edits, as the client declares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from nnterp.records.positions import Range


@dataclass(frozen=True)
class Declared:
    """A `Declared` is what is part of a compiled forward, besides the model.

    Attributes:
        edits: The names of the places that can be edited.
        reads: The names of the places that can be read.
        slots: How many different edits there can be at a time.
        directions: Whether an edit can remove a component along a direction.
    """

    edits: tuple[str, ...]
    reads: tuple[str, ...]
    slots: int
    directions: bool

    def as_config(self) -> dict[str, Any]:
        """Return it as plain data, for an engine's config."""
        return asdict(self)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Declared:
        """Return what `as_config` was called on."""
        names = {key: tuple(config[key]) for key in ("edits", "reads")}
        return cls(**names, slots=config["slots"], directions=config["directions"])


class GraphEdits(NamedTuple):
    """A `GraphEdits` is the edits of a run for tables in a compiled forward.

    Attributes:
        composed: Every different edit of a row, by the shape of the row, as `packed` puts them
            together.
        slots: For each slot that is needed, the edit at each place, by the place's name, as an
            index into those of the shape of its rows.
        ranges: The ranges of each prompt that are edited, each with the index of its slot.
    """

    composed: Mapping[tuple[int, ...], np.ndarray]
    slots: Sequence[Mapping[str, int]]
    ranges: Mapping[int, Sequence[tuple[Range, int]]]

    @classmethod
    def none(cls) -> GraphEdits:
        """Return the edits of a run that has none in a compiled forward."""
        return cls({}, [], {})

    def needed(self, prompts: Sequence[int]) -> list[int]:
        """Return the indices of the slots that ``prompts`` need, in order."""
        return sorted({slot for prompt in prompts for _, slot in self.ranges.get(prompt, ())})
