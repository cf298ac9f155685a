"""Rows that are lost on the way to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import collects
from nnterp.engines.vllm.worker.store import CallersStore


def test_rows_that_do_not_get_to_the_host_end_their_collect_alone(
    engine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they go there on a thread, whose failure is known at the end."""
    model = engine("llama")
    want = {"layers.0.layer_output": "all"}
    before = model.collect(collects.PROMPTS, want)["layers.0.layer_output"]

    def lost(store: CallersStore) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(CallersStore, "flush", lost)
        with pytest.raises(RuntimeError, match="OSError: no room"):
            model.collect(collects.PROMPTS, want)
    after = model.collect(collects.PROMPTS, want)["layers.0.layer_output"]
    assert torch.equal(before.rows, after.rows)
