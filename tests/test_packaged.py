"""A GGUF file's checkpoint is kept by what the file holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import gguf_files
from nnterp.engines import gguf


def loaded(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.lm_head.weight.detach().numpy()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNTERP_CACHE", str(tmp_path / "cache"))


def test_two_files_of_one_name_and_size_are_two_checkpoints(tmp_path: Path) -> None:
    files = [tmp_path / folder / "model.gguf" for folder in ("one", "other")]
    weights = [gguf_files.write(file, seed) for seed, file in enumerate(files)]
    assert files[0].stat().st_size == files[1].stat().st_size
    folders = [gguf.from_gguf(file) for file in files]
    for folder, own in zip(folders, weights, strict=True):
        assert np.array_equal(loaded(folder), own["output"])
