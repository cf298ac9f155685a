"""Groups the prompts of a `collect` into batches by whether they have a LoRA adapter.

vLLM's CPU engine gives a request without an adapter the weights of an adapter that another request
of the step has: so prompts without an adapter run apart from those with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def adapters_of(lora_request: Any, prompts: int) -> list[Any]:
    """Return the LoRA adapter of each prompt, or None for a prompt without one.

    Args:
        lora_request: One adapter for all prompts, or a list with an adapter or None for each.
        prompts: The number of prompts.

    Raises:
        ValueError: The list has another length.
    """
    if not isinstance(lora_request, (list, tuple)):
        return [lora_request] * prompts
    if len(lora_request) != prompts:
        raise ValueError(f"there are {len(lora_request)} lora_requests for {prompts} prompts")
    return list(lora_request)


def batches(adapters: Sequence[Any], at_once: int) -> Iterator[list[int]]:
    """Yield batches of prompts to run together, each as a list of indices.

    Args:
        adapters: The adapter of each prompt, or None.
        at_once: The most prompts in a batch.
    """
    for with_one in (False, True):
        alike = [i for i, adapter in enumerate(adapters) if (adapter is not None) == with_one]
        for start in range(0, len(alike), at_once):
            yield alike[start : start + at_once]
