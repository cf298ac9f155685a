"""What is known to be computed wrongly is said at the load, and where it is not met it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nnterp import StandardizedTransformer, families
from nnterp.known_wrong import KNOWN_WRONG, KnownWrongWarning, met_by

COHERE2 = SimpleNamespace(model_type="cohere2", layer_types=["sliding_attention"])
DEEPSEEK = SimpleNamespace(model_type="deepseek_v3", rope_parameters={"rope_type": "default"})
YARN = SimpleNamespace(model_type="deepseek_v3", rope_parameters={"rope_type": "yarn"})


@pytest.mark.parametrize(
    ("config", "engine", "version", "platform", "met"),
    [
        (COHERE2, "vllm", "0.32.0", "cpu", True),
        (COHERE2, "vllm", "0.32.0+cpu", "cuda", True),
        (COHERE2, "vllm", "0.33.1", "cpu", False),
        (COHERE2, "transformers", "5.19.0", "", False),
        (SimpleNamespace(model_type="cohere2", layer_types=None), "vllm", "0.32.0", "cpu", False),
        (DEEPSEEK, "vllm", "0.32.0", "cpu", True),
        (DEEPSEEK, "vllm", "0.32.0", "cuda", False),
        (YARN, "vllm", "0.32.0", "cpu", False),
    ],
)
def test_a_row_is_met_where_it_says(
    config: Any, engine: Any, version: str, platform: str, met: bool
) -> None:
    assert bool(met_by(config, engine, version, platform, {})) is met


def test_every_row_is_of_families_that_there_are() -> None:
    for row in KNOWN_WRONG:
        known = set(families.known("transformers")) | set(families.known("vllm"))
        assert set(row.model_types) <= known, row
        assert row.cause
        assert row.size


def test_loading_one_warns(tiny_folder: Callable[[str], Path]) -> None:
    path = str(tiny_folder("falcon_rw"))
    with pytest.warns(KnownWrongWarning, match="adds ALiBi twice.*sdpa"):
        StandardizedTransformer(path, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", KnownWrongWarning)
        StandardizedTransformer(path, attn_implementation="sdpa")
