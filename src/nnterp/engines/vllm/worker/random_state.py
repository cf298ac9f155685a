"""The states of the random generators that a thread's code draws from by default."""

from __future__ import annotations

import torch


def _generators() -> list[torch.Generator]:
    """The generators that torch draws from when it is given none."""
    if not torch.cuda.is_available():
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


def random_state() -> list[torch.Tensor]:
    return [generator.get_state() for generator in _generators()]


def set_random_state(states: list[torch.Tensor]) -> None:
    for generator, drawn in zip(_generators(), states, strict=True):
        generator.set_state(drawn)
