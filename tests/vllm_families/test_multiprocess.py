"""The same families with the engine in processes of its own, as users run it by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import checkpoints
import readings
from conftest import TINY_ENGINE

CLOSE = 1e-5

#: One of each kind of block: fused, fused and sandwiched, the Transformers backend.
KINDS = ("llama", "gemma2", "gpt_neox")


@pytest.fixture(scope="module", params=KINDS)
def served(
    request: pytest.FixtureRequest,
    references: Path,
    reference: Callable[[str], dict[str, Any]],
) -> Iterator[tuple[Any, dict[str, Any]]]:
    from nnterp import StandardizedVLLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        model = StandardizedVLLM(str(references / request.param), dispatch=True, **TINY_ENGINE)
        yield model, reference(request.param)
        model.vllm_entrypoint.llm_engine.engine_core.shutdown()


def test_every_value_is_the_one_transformers_computes(
    served: tuple[Any, dict[str, Any]],
) -> None:
    model, expected = served
    found = readings.values(model, checkpoints.PROMPT)
    assert set(found) == set(expected["values"])
    gaps = {name: readings.gap(found[name], want) for name, want in expected["values"].items()}
    assert {name: gap for name, gap in gaps.items() if not gap < CLOSE} == {}


def test_every_edit_does_what_it_does_on_transformers(
    served: tuple[Any, dict[str, Any]],
) -> None:
    model, expected = served
    found = readings.edits(model, checkpoints.PROMPT)
    gaps = {name: readings.gap(found[name], want) for name, want in expected["edits"].items()}
    assert {name: gap for name, gap in gaps.items() if not gap < CLOSE} == {}
