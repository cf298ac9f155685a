"""Rows that no module makes infinite are told from others."""

from __future__ import annotations

import pytest
import torch

from nnterp.engines.vllm.worker.edited_cache import is_tame


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), "largest", "square"])
def test_one_number_is_enough(dtype: torch.dtype, number: float | str) -> None:
    """The largest number is infinite when doubled, and the root of it when two are squared."""
    largest = torch.finfo(dtype).max
    at = {"largest": largest, "square": -(largest**0.5) * 0.9}
    rows = torch.ones(3, 8, dtype=dtype)
    assert is_tame(rows)
    rows[1, 5] = at[number] if isinstance(number, str) else number
    assert not is_tame(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_squares_of_tame_rows_have_a_sum(dtype: torch.dtype) -> None:
    rows = torch.full((1, 1 << 16), torch.finfo(dtype).max ** 0.25 * 0.99, dtype=dtype)
    assert is_tame(rows)
    assert bool(rows.square().sum(dtype=dtype).isfinite())


def test_integers_and_no_rows_are_tame() -> None:
    assert is_tame(torch.tensor([1 << 40]))
    assert is_tame(torch.zeros(0, 8))
