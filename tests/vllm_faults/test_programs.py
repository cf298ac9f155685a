"""Random programs do on vLLM, three in a batch, what each does alone on transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import checkpoints
import programs
from nnterp import StandardizedTransformer

CLOSE = 1e-5
PROMPTS = [checkpoints.PROMPT[:6], checkpoints.PROMPT, checkpoints.PROMPT[5:16]]

#: A fused block, a fused and sandwiched one, one that passes a single tensor.
EXAMPLES = {"llama": 500, "gemma2": 100, "gpt2": 100}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_program_does_the_same_on_both_engines(
    name: str, engine: Callable[[str], Any], tiny_folder: Callable[[str], Path]
) -> None:
    model = engine(name)
    reference = StandardizedTransformer(
        str(tiny_folder(name)),
        dispatch=True,
        dtype=torch.float32,
        attn_implementation="eager",
    )
    ran = 0

    @settings(
        max_examples=EXAMPLES[name],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        nonlocal ran
        random = Random(seed)
        drawn = programs.draw_batch(random, len(PROMPTS))
        expected = programs.on_transformers(reference, PROMPTS, drawn)
        found = programs.on_vllm(model, PROMPTS, drawn)
        assert programs.worst_gap(found, expected) < CLOSE, drawn
        ran += 1

    check()
    assert ran >= EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_program_that_is_not_finite_is_no_other_requests_affair(
    name: str, engine: Callable[[str], Any]
) -> None:
    """What stands beside it and what comes after it are bitwise what they are without it."""
    model = engine(name)
    random = Random(name)
    for _ in range(EXAMPLES[name] // 10):
        program = programs.draw(random)
        wild = programs.draw(random, programs.NOT_FINITE)
        beside_it = programs.on_vllm(model, PROMPTS, [program, wild, program])
        without = programs.on_vllm(model, PROMPTS, [program, [], program])
        for row in (0, 2):
            assert beside_it[row].keys() == without[row].keys()
            for key, expected in without[row].items():
                assert torch.equal(beside_it[row][key], expected), (key, wild)
