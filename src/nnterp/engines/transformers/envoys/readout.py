"""Computes the logits from what the output projection returns.

Families cap or scale their logits. Each way is a function of the projection's output, ``[...,
vocab]``, and the config, which a family names as its ``READOUT``; it returns the logits in the
same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Readout = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class SoftCap:
    """A `SoftCap` is a readout that is not linear: it holds logits below a number.

    Attributes:
        field: The field of the config that has the number, or None for no cap.
    """

    field: str

    def __call__(self, logits: Tensor, config: Any) -> Tensor:
        """Return capped ``logits``, in their shape."""
        cap = getattr(config, self.field)
        return logits if cap is None else cap * torch.tanh(logits / cap)


def capped(field: str) -> Readout:
    """Return a readout with a soft cap at the config's ``field``, where that is set."""
    return SoftCap(field)


def multiplied(field: str) -> Readout:
    """Return a readout that multiplies by the config's ``field``."""
    return lambda logits, config: logits * getattr(config, field)


def divided(field: str) -> Readout:
    """Return a readout that divides by the config's ``field``."""
    return lambda logits, config: logits / getattr(config, field)
