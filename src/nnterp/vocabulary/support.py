"""Defines the table of what a loaded checkpoint serves, which ``model.support()`` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nnterp.vocabulary.values import Value


@dataclass(frozen=True)
class Served:
    """`Served` says whether, where and how one value is served.

    Attributes:
        value: The vocabulary row.
        layout: The axes in which this engine serves it.
        writable: Whether it can be edited or replaced on this checkpoint and engine.
        steps: The steps of a generation that serve it.
        blocks: The indices of the blocks that serve it; empty for a value of the model itself.
        reasons: Why the other blocks do not serve it, by block index. The reason of a value of
            the model itself is under -1.
    """

    value: Value
    layout: str
    writable: bool
    steps: str
    blocks: tuple[int, ...]
    reasons: Mapping[int, str]

    @property
    def available(self) -> bool:
        """Return whether at least one block, or the model itself, serves the value."""
        return bool(self.blocks) or (self.value.host == "model" and not self.reasons)

    def __bool__(self) -> bool:
        return self.available


class Support(Mapping[str, Served]):
    """Maps value names to what a checkpoint serves of them; it prints as a table."""

    def __init__(self, rows: Mapping[str, Served], num_layers: int) -> None:
        self._rows = dict(rows)
        self._num_layers = num_layers

    def __getitem__(self, name: str) -> Served:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        lines = []
        for row in self._rows.values():
            access = "read, write" if row.writable else "read"
            note = self._note(row)
            lines.append(f"{row.value.name:24} [{row.layout}]".ljust(60) + f"{access:12} {note}")
        return "\n".join(line.rstrip() for line in lines)

    def _note(self, row: Served) -> str:
        """Return what the table says of ``row`` in its last column."""
        if not row.available:
            return "unavailable: " + "; ".join(sorted(set(row.reasons.values())))
        note = "" if row.steps == "every step" else row.steps
        if row.reasons:
            note += f" on {len(row.blocks)} of {self._num_layers} blocks"
        return note
