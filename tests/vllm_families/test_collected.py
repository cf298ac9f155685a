"""What the families collect on vLLM is what they collect on transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import checkpoints
import collects
from nnterp.compare import gap

CLOSE = 1e-5


@pytest.mark.parametrize("name", checkpoints.TINY)
def test_what_is_collected_is_what_transformers_collects(
    name: str, engine: Callable[[str], Any], reference: Callable[[str], dict[str, Any]]
) -> None:
    model = engine(name)
    rows = collects.flat(model.collect(collects.PROMPTS, collects.wanted(model)))
    expected = reference(name)["collected"]
    assert set(rows) == set(expected)
    for key, want in expected.items():
        assert rows[key].dtype == want.dtype
        assert gap(rows[key], want) < CLOSE, key
