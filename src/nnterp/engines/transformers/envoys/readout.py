"""From what the output projection gives to the logits.

Families cap or scale their logits; each way is a function of the projection's output and
the config, which a family names as its ``READOUT``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Readout = Callable[[Tensor, Any], Tensor]


def capped(field: str) -> Readout:
    """A soft cap at the config's ``field``, where it is set."""

    def read(logits: Tensor, config: Any) -> Tensor:
        cap = getattr(config, field)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    return read


def multiplied(field: str) -> Readout:
    """Multiplied by the config's ``field``."""
    return lambda logits, config: logits * getattr(config, field)


def divided(field: str) -> Readout:
    """Divided by the config's ``field``."""
    return lambda logits, config: logits / getattr(config, field)
