"""Freed memory is kept for the next forward.

Memory is taken from `malloc` itself, and given back in the reverse order: among the tensors
of a framework lie small allocations which, by chance, hold the end of the heap in place, or
leave a hole that the next round does not quite fit.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

THREE_TIMES_200_MB = """
import ctypes, resource, sys
from nnterp.engines.vllm.worker.heap import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    before = faults()
    held = [libc.malloc(20 << 20) for _ in range(10)]
    for piece in held:
        libc.memset(piece, 1, 20 << 20)
    for piece in reversed(held):
        libc.free(piece)
print(faults() - before)
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
