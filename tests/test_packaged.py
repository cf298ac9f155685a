"""A GGUF file's checkpoint is kept by what the file holds."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from nnterp.engines import gguf


def write(path: Path, seed: int) -> dict[str, Any]:
    """A llama of one block in a GGUF file; its weights, which are random."""
    numbers = np.random.default_rng(seed)
    shapes = {"token_embd": (32, 32), "output_norm": (32,), "output": (32, 32)}
    shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.attn_{name}": (32, 32) for name in ("q", "output")}
    shapes |= {f"blk.0.attn_{name}": (16, 32) for name in ("k", "v")}
    shapes |= {f"blk.0.ffn_{name}": (64, 32) for name in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (32, 64)}
    weights = {
        name: numbers.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["ab", *(chr(97 + token) for token in range(31))])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * 32)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def loaded(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.lm_head.weight.detach().numpy()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNTERP_CACHE", str(tmp_path / "cache"))


def test_two_files_of_one_name_and_size_are_two_checkpoints(tmp_path: Path) -> None:
    files = [tmp_path / folder / "model.gguf" for folder in ("one", "other")]
    weights = [write(file, seed) for seed, file in enumerate(files)]
    assert files[0].stat().st_size == files[1].stat().st_size
    folders = [gguf.from_gguf(file) for file in files]
    for folder, own in zip(folders, weights, strict=True):
        assert np.array_equal(loaded(folder), own["output"])


def test_a_file_that_takes_anothers_place_and_time_is_read_again(tmp_path: Path) -> None:
    file, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    write(file, 0)
    write(other, 1)
    first = gguf._digest(file)
    written = file.stat().st_mtime_ns
    os.utime(other, ns=(written, written))
    other.replace(file)
    assert file.stat().st_mtime_ns == written
    assert gguf._digest(file) != first


def test_a_file_is_hashed_once_until_it_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write(file, 0)
    first = gguf._digest(file)
    with mock.patch.object(gguf.hashlib, "file_digest", side_effect=AssertionError):
        assert gguf._digest(file) == first
    time.sleep(0.05)  # more than a tick of the clock that files are stamped by
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\x7f")
    assert gguf._digest(file) != first
