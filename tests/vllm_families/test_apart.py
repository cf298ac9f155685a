"""The families with the engine in processes of its own, on one rank and on two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import apart
from conftest import TINY_ENGINE
from nnterp.tools.checking.compare import relative_error

CLOSE = 1e-5


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("llama", 1),
        ("gemma2", 1),
        ("gpt_neox", 1),
        ("llama", 2),
        ("qwen2", 2),  # fewer key heads than ranks
        ("gpt_neox", 2),
        ("gemma4_text_moe", 2),  # fewer key heads than ranks in one block, and not in the other
    ],
)
def test_an_engine_apart_serves_and_edits_as_transformers_does(
    name: str,
    ranks: int,
    tiny_folder: Callable[[str], Path],
    reference: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    found = apart.serve(
        tiny_folder(name), tmp_path / "found.pt", tensor_parallel_size=ranks, **TINY_ENGINE
    )
    assert found["client"] == "SyncMPClient"
    expected = reference(name)
    for kind in ("values", "edits", "collected"):
        lacking = {key.rpartition(".")[2] for key in expected[kind].keys() ^ found[kind].keys()}
        assert lacking <= {"expert_indices", "expert_weights"}
        gaps = {key: relative_error(own, expected[kind][key]) for key, own in found[kind].items()}
        assert {
            key: relative_error
            for key, relative_error in gaps.items()
            if not relative_error < CLOSE
        } == {}
