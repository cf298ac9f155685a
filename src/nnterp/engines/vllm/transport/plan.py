"""Defines what the worker is told of a run before its requests are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nnterp.collecting.selections import Selection
from nnterp.engines.vllm.transport.in_graph import GraphEdits


class Plan(NamedTuple):
    """A `Plan` is what a run reads and edits.

    Attributes:
        wanted: The selection at each place, by the place's name.
        changes: The changes of each prompt at each place, by the place's name, which are made
            beside the forward, as `pack_changes` packs them.
        in_graph: The changes that are made in a compiled forward.
        lengths: The number of tokens that steps run at most, of each prompt's sequence.
        sees_gpu: Whether the caller's process can open memory of a GPU.
    """

    wanted: Mapping[str, Selection]
    changes: bytes
    in_graph: GraphEdits
    lengths: Sequence[int]
    sees_gpu: bool
