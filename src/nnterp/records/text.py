"""Turns what records hold into what JSON can hold, and back."""

from __future__ import annotations

from typing import Any

from nnterp.records.positions import Steps


def plain(given: Any) -> Any:
    """Return ``given`` as numbers, texts and lists.

    Raises:
        TypeError: It is a function, or holds something else that JSON has no form for.
    """
    if hasattr(given, "tolist"):
        return given.tolist()
    if given is None or isinstance(given, bool | int | float | str):
        return given
    if isinstance(given, list | tuple):
        return [plain(item) for item in given]
    raise TypeError(f"a {type(given).__name__} cannot be written as JSON: {given!r}")


def steps_text(steps: Steps) -> Any:
    """Return ``steps`` as what JSON can hold; a slice becomes its two ends by name."""
    if isinstance(steps, slice):
        return {"start": steps.start, "stop": steps.stop}
    return plain(steps)


def steps_of(text: Any) -> Steps:
    """Return the steps that `steps_text` wrote."""
    return slice(text["start"], text["stop"]) if isinstance(text, dict) else text
