"""Every fault between good requests, in this process and in processes of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import apart
import fault_runs
from conftest import TINY_ENGINE
from faults import FAULTS

#: A cache of few blocks, so that what one request leaves in it the next one is given.
FEW_BLOCKS = {
    **TINY_ENGINE,
    "kv_cache_memory_bytes": 10 * 2 * 2 * 2 * 32 * 4 * 32,
    "block_size": 32,
}


@pytest.fixture(scope="module")
def outcomes_apart(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    found = tmp_path_factory.mktemp("faults") / "outcomes.pt"
    script = Path(fault_runs.__file__)
    apart.run([str(script), str(tiny_folder("llama")), str(found), json.dumps(FEW_BLOCKS)])
    return torch.load(found)


@pytest.fixture(params=["in process", "apart"])
def outcome(
    request: pytest.FixtureRequest, name: str, engine: Callable[[str], Any]
) -> dict[str, Any]:
    if request.param == "apart":
        return request.getfixturevalue("outcomes_apart")[name]
    return fault_runs.outcome(engine("llama"), FAULTS[name])


def test_there_are_faults_enough() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_stays_alone(name: str, outcome: dict[str, Any]) -> None:
    assert fault_runs.wrong(FAULTS[name], outcome) is None
