"""The block that is running now, if one is."""

from __future__ import annotations

from greenlet import getcurrent


def in_block() -> bool:
    """Whether the code running now is a trace's block."""
    return getattr(getcurrent(), "mediator", None) is not None


def require_outside_blocks(what: str) -> None:
    """Refuse what runs prompts of its own in a block, whose model is in the middle of a run.

    Args:
        what: What was called.

    Raises:
        ValueError: This is a block.
    """
    if in_block():
        raise ValueError(
            f"{what} runs the model, which is running already for the trace this is in: save "
            "what you need of it, close the trace, and go on below"
        )
