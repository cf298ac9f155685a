"""Keeps the state of a running block, as one object on nnsight's mediator, on either engine."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor


class BlockState:
    """`BlockState` holds the state of one running block.

    Attributes:
        latest_value: The path of the value that the block asked for last.
        earlier_parts: For values in two parts, by path: the step on which the earlier part was
            read, and the part.
        waits_for_value: Whether the block waits for a standard value, and not for one of nnsight's
            own handles.
        loops: The loops over steps that the block is in, outermost first.
        run_is_over: Whether the run that the block belongs to has made its last step.
        messages: Warnings for the author of the block.
    """

    def __init__(self) -> None:
        self.latest_value: str | None = None
        self.earlier_parts: dict[str, tuple[int, Tensor]] = {}
        self.waits_for_value = False
        self.loops: list[Any] = []
        self.run_is_over = False
        self.messages: list[str] = []

    @classmethod
    def of(cls, block: Any) -> Self:
        """Return the state of ``block``, a mediator; a new one if it has asked for nothing yet."""
        state = block.__dict__.get("state")
        if state is None:
            state = block.__dict__["state"] = cls()
        return state
