"""Memory that a forward's tensors can have again, on a CPU.

A forward makes and drops tensors of a few megabytes at each of its operations. glibc takes
such memory from the system, or from the end of its heap, and gives the end back whenever
enough of it is free; each page then costs a fault the next time it is used. A forward alone
soon settles into memory it keeps, but values kept in between, and let go of when their
request ends, have the heap grow and shrink in every step.
"""

from __future__ import annotations

import ctypes

#: From malloc.h. Below the first, the heap's free end is kept; above the other, memory is
#: the system's own, and 32 MB is the most glibc takes.
_TRIM_THRESHOLD, _FREE_HEAP_KEPT = -1, 256 << 20
_MMAP_THRESHOLD, _LARGEST = -3, 32 << 20


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MB of free heap for this process; elsewhere, do nothing."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_MMAP_THRESHOLD, _LARGEST)
        tune(_TRIM_THRESHOLD, _FREE_HEAP_KEPT)
