"""Defines what a block swaps in at a location: its content before and after the block's edits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Swap:
    """A `Swap` is a location's content before and after a block's edits.

    Both are trees of one structure. Leaves that the block did not edit are the same objects in
    both, so that only the edited ones are put into the rows of the block's request.

    Attributes:
        before: The content before the edits.
        after: The content after them.
    """

    before: Any
    after: Any


#: Stands for a `Swap` of edits that have been taken, to be made together with other blocks'.
TAKEN: Final = object()
