"""Measures how far two engines' values are apart."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest magnitude expected.

    It is infinite where the shapes differ, where nothing finite is expected, or where one of the
    two is infinite or NaN at a position and the other is not.

    Args:
        found: A tensor of any shape.
        expected: The tensor that it should equal.
    """
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.double(), expected.double()
    finite = torch.isfinite(expected)
    if not finite.any() or not torch.equal(finite, torch.isfinite(found)):
        return float("inf")
    difference = (found[finite] - expected[finite]).abs().max()
    return (difference / expected[finite].abs().max().clamp(min=1e-12)).item()
