"""Defines what the worker is told of a run before its requests are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nnterp.collecting.selections import Selection
from nnterp.editing.request import Change


class Plan(NamedTuple):
    """A `Plan` is what a run reads and edits.

    Attributes:
        wanted: The selection at each place, by the place's name.
        changes: The changes of each prompt at each place, by the place's name.
        lengths: The number of tokens that steps run at most, of each prompt's sequence.
        sees_gpu: Whether the caller's process can open memory of a GPU.
    """

    wanted: Mapping[str, Selection]
    changes: Mapping[str, Mapping[int, Sequence[Change]]]
    lengths: Sequence[int]
    sees_gpu: bool
