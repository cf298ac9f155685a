"""Which prompts of a `collect` run with an adapter, and which together.

vLLM's CPU engine gives a request without an adapter the weights of one that another request
of the step has: so the ones without run apart from the ones with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def adapters_of(lora_request: Any, prompts: int) -> list[Any]:
    """The adapter of each prompt, or None.

    Args:
        lora_request: One for all, or a list of one or None for each.
        prompts: How many there are.

    Raises:
        ValueError: The list is of another length.
    """
    if not isinstance(lora_request, (list, tuple)):
        return [lora_request] * prompts
    if len(lora_request) != prompts:
        raise ValueError(f"there are {len(lora_request)} lora_requests for {prompts} prompts")
    return list(lora_request)


def batches(adapters: Sequence[Any], at_once: int) -> Iterator[list[int]]:
    """The prompts to run together, ``at_once`` of them at most, by index."""
    for with_one in (False, True):
        alike = [i for i, adapter in enumerate(adapters) if (adapter is not None) == with_one]
        for start in range(0, len(alike), at_once):
            yield alike[start : start + at_once]
