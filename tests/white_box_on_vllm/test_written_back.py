"""What was only read is not written back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from conftest import TINY_ENGINE
from nnterp import StandardizedVLLM
from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.tools.checking import readings

PROMPT = checkpoints.PROMPT
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}


@pytest.fixture(scope="module")
def llama(engine: Callable[[str], Any]) -> Any:
    return engine("llama")


@pytest.fixture(scope="module")
def bfloat16(tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]) -> Any:
    arguments = {**TINY_ENGINE, "dtype": "bfloat16"}
    return keep(StandardizedVLLM(str(tiny_folder("llama")), dispatch=True, **arguments))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_unedited_read_changes_no_bit_and_writes_nothing(
    precision: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = request.getfixturevalue("llama" if precision == "float32" else "bfloat16")
    with model.trace(PROMPT, **ONE_STEP):
        bare = model.logits.save()
    writes: list[Any] = []
    real = RowBatcher.widen
    monkeypatch.setattr(
        RowBatcher, "widen", lambda self, *args: writes.append(args) or real(self, *args)
    )
    readings.values(model, PROMPT)
    with model.trace(PROMPT, **ONE_STEP):
        for layer in model.layers:
            layer.layer_input.sum()
            layer.self_attn.attention_queries.sum()
            layer.self_attn.attention_head_outputs.sum()
            layer.self_attn.attention_output.sum()
            layer.mlp.mlp_output.sum()
            layer.layer_output.sum()
        read = model.logits.save()
    assert torch.equal(bare, read)
    assert writes == []
    assert bare.dtype == getattr(torch, precision)
