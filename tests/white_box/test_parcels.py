"""How saved values come home: whole, their own, and without leaving anything behind."""

from __future__ import annotations

import errno
import glob
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nnterp.engines.vllm.transport import packing, shared_files
from nnterp.engines.vllm.transport.address import Address

OWN = Address.own()
#: This process, another of this host, one of another host; all opened in this one.
WAYS = {
    "here": OWN,
    "nearby": OWN._replace(process=f"another-{os.getpid()}"),
    "far": Address("another", "another host"),
}
LARGE = 1 << 19  # of float32: beyond what is copied out


@pytest.fixture(params=WAYS)
def sent(request: pytest.FixtureRequest) -> Any:
    def send(value: Any) -> Any:
        return pickle.loads(packing.pack(value, WAYS[request.param]))

    return send


def left_behind() -> list[str]:
    return glob.glob(f"{shared_files.SHARED_MEMORY}/nnterp-*")


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64],
)
def test_every_dtype_and_shape_arrives(sent: Any, dtype: torch.dtype) -> None:
    before = left_behind()
    shapes = [(), (0,), (3,), (2, 0, 4), (1, 7, 5), (LARGE,), (2, LARGE // 2)]
    tensors = [torch.randint(0, 2, shape).to(dtype) for shape in shapes]
    for found, tensor in zip(sent(tensors), tensors, strict=True):
        assert found.dtype == dtype
        assert found.shape == tensor.shape
        assert torch.equal(found.to(torch.complex64), tensor.to(torch.complex64))
    assert left_behind() == before


def test_a_view_arrives_without_what_it_is_a_view_of(sent: Any) -> None:
    whole = torch.randn(64, 100)
    views = {"row": whole[3], "column": whole[:, 3], "step": whole[::2], "turned": whole.T}
    found = sent(views)
    for name, view in views.items():
        assert torch.equal(found[name], view)
        assert found[name].untyped_storage().nbytes() == view.numel() * 4
    saved = io.BytesIO()
    torch.save(found["row"], saved)
    assert len(saved.getvalue()) < 3000


def test_a_tensor_saved_twice_is_one_tensor(sent: Any) -> None:
    tensor = torch.randn(5)
    found = sent({"a": tensor, "b": [tensor]})
    assert found["a"] is found["b"][0]


def test_what_arrives_is_the_callers_own(sent: Any) -> None:
    for size in (5, LARGE):
        tensor = torch.zeros(size)
        first, second = sent(tensor), sent(tensor)
        first += 1
        assert not tensor.any()
        assert not second.any()


def test_tensors_of_other_kinds_arrive_by_torchs_own_way(sent: Any) -> None:
    sparse = torch.eye(4).to_sparse()
    parameter = torch.nn.Parameter(torch.randn(3))
    found = sent([sparse, parameter, torch.randn(4, dtype=torch.complex64).conj()])
    assert torch.equal(found[0].to_dense(), torch.eye(4))
    assert isinstance(found[1], torch.nn.Parameter)
    assert torch.equal(found[1], parameter)


def test_a_hundred_thousand_numbers_and_no_tensor_arrive(sent: Any) -> None:
    value = {"numbers": list(range(100_000)), "text": "x", "none": None}
    assert sent(value) == value


def test_memory_lasts_as_long_as_its_tensors_and_no_longer() -> None:
    before = left_behind()
    payload = packing.pack([torch.zeros(LARGE), torch.zeros(3)], WAYS["nearby"])
    assert len(left_behind()) == len(before) + 1
    large, small = pickle.loads(payload)
    assert left_behind() == before
    assert large.sum() == small.sum() == 0


def test_no_room_anywhere_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    before = left_behind()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"no room in /dev/shm or .*; ask for less at once, give"):
        packing.pack([torch.zeros(4)], WAYS["nearby"])
    assert left_behind() == before


def test_what_finds_no_room_keeps_nothing_else_from_arriving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserve = os.posix_fallocate

    def small(file: int, start: int, size: int) -> None:
        if size > 1000:
            raise OSError(errno.ENOSPC, "full")
        reserve(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", small)
    values = {"large": torch.zeros(LARGE), "small": torch.ones(3), "none": [1, 2]}
    packed = packing.pack_each(values, WAYS["nearby"], lambda value, error: str(error))
    found = pickle.loads(packed)
    assert "have no room" in found["large"]
    assert torch.equal(found["small"], torch.ones(3))
    assert found["none"] == [1, 2]


ORPHAN = """
from nnterp.engines.vllm.transport import shared_files
print(shared_files.create(4096, reader={reader})[0])
"""


def test_files_of_killed_processes_are_removed_and_others_are_not() -> None:
    """A writer that ended leaves a file behind until its reader has opened it, or ended too."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    paths = []
    for reader in (gone.pid, os.getpid()):
        program = [sys.executable, "-c", ORPHAN.format(reader=reader)]
        paths.append(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    orphan, awaited = (Path(path.strip()) for path in paths)
    try:
        shared_files.sweep()
        assert not orphan.exists()
        assert awaited.exists()
    finally:
        awaited.unlink(missing_ok=True)
