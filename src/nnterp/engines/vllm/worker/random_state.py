"""Reads and sets the states of the random generators that torch draws from by default."""

from __future__ import annotations

import torch


def _generators() -> list[torch.Generator]:
    """Return the generators that torch draws from when it is given none."""
    if not torch.cuda.is_available():
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


def random_state() -> list[torch.Tensor]:
    """Return the states of the default generators of the CPU and of the current GPU."""
    return [generator.get_state() for generator in _generators()]


def set_random_state(states: list[torch.Tensor]) -> None:
    """Set the states of the default generators.

    Args:
        states: What `random_state` returned.
    """
    for generator, drawn in zip(_generators(), states, strict=True):
        generator.set_state(drawn)
