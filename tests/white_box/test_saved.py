"""The notes of what a block saved."""

from __future__ import annotations

import torch

from nnterp.engines.vllm.worker.saved import Saved


def test_a_note_ends_with_its_value() -> None:
    saved = Saved()
    tensor, rows = torch.zeros(2), [1]
    tensor_id, rows_id = id(tensor), id(rows)
    saved.add(tensor_id)
    saved.add(rows_id)
    assert tensor_id in saved
    assert rows_id in saved
    del tensor
    assert tensor_id not in saved
