"""Tells whether a trace's block is running now."""

from __future__ import annotations

from greenlet import getcurrent


def in_block() -> bool:
    """Return whether the code running now is a trace's block."""
    return getattr(getcurrent(), "mediator", None) is not None


def require_outside_blocks(what: str) -> None:
    """Refuse to run prompts inside a block, whose model is in the middle of a run already.

    Args:
        what: The name of what was called.

    Raises:
        ValueError: A block is running.
    """
    if in_block():
        raise ValueError(
            f"{what} runs the model, which is running already for the trace this is in: save "
            "what you need of it, close the trace, and go on below"
        )
