"""Makes glibc keep freed memory for a CPU forward's tensors to use again.

A forward makes and drops tensors of a few megabytes at each of its operations. glibc takes such
memory from the system, or from the end of its heap, and gives the end back whenever enough of it is
free; each page then costs a page fault the next time it is used. A forward alone soon settles into
memory it keeps, but values kept in between, and freed when their request ends, make the heap grow
and shrink in every step.
"""

from __future__ import annotations

import ctypes

#: Parameters of ``mallopt``, from malloc.h, and their values. Below the first, the heap's free end
#: is kept; above the other, memory comes from the system by itself, and 32 MB is the most glibc
#: takes.
_TRIM_THRESHOLD, _FREE_HEAP_KEPT = -1, 256 << 20
_MMAP_THRESHOLD, _LARGEST = -3, 32 << 20


def keep_freed_memory() -> None:
    """Make glibc keep up to 256 MB of free heap in this process; elsewhere, do nothing."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_MMAP_THRESHOLD, _LARGEST)
        tune(_TRIM_THRESHOLD, _FREE_HEAP_KEPT)
