"""A GGUF file is hashed anew when it was changed, and not before."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import pytest

import gguf_files
from nnterp.engines import gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNTERP_CACHE", str(tmp_path / "cache"))


def test_a_file_that_takes_anothers_place_and_time_is_read_again(tmp_path: Path) -> None:
    file, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    gguf_files.write(file, 0)
    gguf_files.write(other, 1)
    first = gguf._digest(file)
    written = file.stat().st_mtime_ns
    os.utime(other, ns=(written, written))
    other.replace(file)
    assert file.stat().st_mtime_ns == written
    assert gguf._digest(file) != first


def test_a_file_is_hashed_once_until_it_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, 0)
    first = gguf._digest(file)
    with mock.patch.object(gguf.hashlib, "file_digest", side_effect=AssertionError):
        assert gguf._digest(file) == first
    time.sleep(0.05)  # more than a tick of the clock that files are stamped by
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"\x7f")
    assert gguf._digest(file) != first
