"""How far two engines' values are apart."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest magnitude expected.

    Infinite where the shapes differ, where nothing finite is expected, or where one of the
    two is infinite or not a number and the other is not.
    """
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.double(), expected.double()
    finite = torch.isfinite(expected)
    if not finite.any() or not torch.equal(finite, torch.isfinite(found)):
        return float("inf")
    difference = (found[finite] - expected[finite]).abs().max()
    return (difference / expected[finite].abs().max().clamp(min=1e-12)).item()
