"""What a block swaps in at a location: its content before and after the block's edits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """A location's content before and after a block's edits.

    Leaves the block left alone are the same objects in both, so that only the others are put
    into the rows of the block's request.
    """

    before: Any
    after: Any
