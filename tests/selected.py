"""Which checkpoints the tests that were selected ask for, before the first of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def names(items: Iterable[Any], fixture: str, every: Sequence[str] = ()) -> list[str]:
    """The checkpoints that pytest's ``items`` want ``fixture`` of, in their order.

    Args:
        items: The tests.
        fixture: The fixture that makes something of a checkpoint.
        every: What a test asks for that has no parameter ``name``.
    """
    found: dict[str, None] = {}
    for item in items:
        if fixture in item.fixturenames:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            asked = [parameters["name"]] if "name" in parameters else every
            found |= dict.fromkeys(asked)
    return list(found)
