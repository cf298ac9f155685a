"""Defines `Read`: a value to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnterp.records.positions import Positions, Steps
from nnterp.records.text import plain, steps_of, steps_text


@dataclass(frozen=True)
class Read:
    """A `Read` says which value to keep, and where.

    A value that is edited as well is read with its edits.

    Attributes:
        value: The value's name, such as ``layers.3.layer_output``; ``*`` stands for every block.
        positions: The positions to keep: ``"last"``, the last of each step; ``"all"``;
            ``"prompt"``; ``"generated"``; ``"mean"``, over the prompt, in float32; a position of
            the prompt; for each prompt a position, several, or a mask of ``[tokens]``; or a
            function that takes the prompt's value, in the layout of a trace with batch 1, and
            returns a tensor of one shape for all prompts.
        steps: The steps of the generation to keep them of, counted from the prompt's: one,
            several, a slice, or None for all.
    """

    value: str
    positions: Positions = "last"
    steps: Steps = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as what `json` writes.

        Raises:
            TypeError: The positions are a function.
        """
        return {
            "value": self.value,
            "positions": plain(self.positions),
            "steps": steps_text(self.steps),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Read:
        """Return the record that `to_json` wrote.

        Raises:
            TypeError: It has a field that a read has not.
        """
        return cls(**{**record, "steps": steps_of(record.get("steps"))})
