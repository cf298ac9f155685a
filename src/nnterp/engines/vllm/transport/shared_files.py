"""Creates files in shared memory that one process writes and another reads.

Their memory is reserved as they are made: a file that only has a length takes memory as it is
written to, and where that runs out, as in a container's small ``/dev/shm``, the process that writes
is killed. The reader removes the file as it opens it. A file whose writer and reader were both
killed in between is left over, and is removed by the next process that makes one.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import platform
import re
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

#: The folder whose files are shared memory.
SHARED_MEMORY = "/dev/shm"

#: How many bytes of it are left free for others: the engine's own queues are there too, and take
#: their memory only as they fill.
_SPARE = 192 << 20

#: The error numbers that mean no room: on the device, for this user, under this limit.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


def create(nbytes: int, reader: int) -> tuple[str, Tensor]:
    """Create a file for the process with id ``reader``, and map it.

    Args:
        nbytes: The size that is needed.
        reader: The id of the process that will read the file.

    Returns:
        The file's path, and its bytes as a tensor, ``[nbytes]`` or ``[1]`` for 0 bytes.

    Raises:
        OSError: No folder has room.
    """
    size = max(nbytes, 1)  # a mapping cannot be empty
    _sweep_once(os.getpid())
    for folder in _folders():
        if folder == SHARED_MEMORY and _free(folder) < size + _SPARE:
            continue
        file, path = tempfile.mkstemp(prefix=f"{_prefix()}{os.getpid()}-{reader}-", dir=folder)
        try:
            _reserve(file, size)
            return path, torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
        except OSError as error:
            os.unlink(path)
            if error.errno not in _FULL:
                raise
        finally:
            os.close(file)
    raise OSError(
        errno.ENOSPC,
        f"{nbytes / 1e6:,.0f} MB of values have no room in {' or '.join(_folders())}; ask for less "
        f"at once, give the machine a larger {SHARED_MEMORY} (docker run --shm-size), or set "
        "TMPDIR to a folder with room",
    )


def _folders() -> list[str]:
    """Return the folders to make files in: one in memory, and failing that one on disk."""
    return [folder for folder in (SHARED_MEMORY, tempfile.gettempdir()) if os.path.isdir(folder)]


def _free(folder: str) -> int:
    """Return the free bytes of the file system that ``folder`` is on."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _reserve(file: int, size: int) -> None:
    """Reserve ``size`` bytes for ``file``, or where the platform cannot, set its length only."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    os.truncate(file, size)


def sweep() -> None:
    """Remove the files whose writer and reader have both ended."""
    name = re.compile(rf"{_prefix()}(\d+)-(\d+)-")
    for folder in _folders():
        for entry in os.scandir(folder):
            match = name.match(entry.name)
            if match is not None and not any(_alive(int(process)) for process in match.groups()):
                # Another process may be sweeping too.
                Path(entry.path).unlink(missing_ok=True)


@cache
def _sweep_once(process: int) -> None:
    """Call `sweep`, once in the process whose id is ``process``."""
    sweep()


def _alive(process: int) -> bool:
    """Return whether there is a process with id ``process``."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@cache
def _prefix() -> str:
    """Return how file names begin among processes with common process ids, as in one container."""
    numbered = Path("/proc/self/ns/pid")
    boot = Path("/proc/sys/kernel/random/boot_id")
    where = [str(numbered.readlink()), boot.read_text()] if numbered.exists() else [platform.node()]
    return f"nnterp-{hashlib.sha256(''.join(where).encode()).hexdigest()[:8]}-"
