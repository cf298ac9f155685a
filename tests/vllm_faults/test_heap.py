"""Freed memory is kept for the next forward."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

THREE_TIMES_200_MB = """
import resource, sys, torch
from nnterp.vllm.heap import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(5 << 20) for _ in range(10)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """The page faults of taking 200 MB for the third time."""
    run = subprocess.run(
        [sys.executable, "-c", THREE_TIMES_200_MB, how], check=True, capture_output=True, text=True
    )
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_memory_let_go_of_is_had_again_without_faults() -> None:
    assert faults("kept") < 1000 < faults("as it is")
