"""Files of memory that one process writes and another reads.

Their memory is reserved as they are made: a file that only says how long it is takes memory as
it is written to, and where that runs out, as in a container's small ``/dev/shm``, the process
that writes is killed. The reader removes the file as it opens it. One whose writer and reader
were both killed in between is nobody's, and is removed by the next process that makes one.
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

#: Where memory is a file.
SHARED_MEMORY = "/dev/shm"

#: What is left of it for others, in bytes: the engine's own queues lie there too, and take their
#: memory only as they fill.
_SPARE = 192 << 20

#: What says that there is no room: on the device, for this user, under this limit.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


def create(nbytes: int, reader: int) -> tuple[str, Tensor]:
    """A new file for the process ``reader``, and its bytes.

    Raises:
        OSError: Nowhere has room.
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
    """Folders of memory, or failing that of disk."""
    return [folder for folder in (SHARED_MEMORY, tempfile.gettempdir()) if os.path.isdir(folder)]


def _free(folder: str) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    os.truncate(file, size)


def sweep() -> None:
    """Remove the files whose writer and reader are both gone."""
    name = re.compile(rf"{_prefix()}(\d+)-(\d+)-")
    for folder in _folders():
        for entry in os.scandir(folder):
            match = name.match(entry.name)
            if match is not None and not any(_alive(int(process)) for process in match.groups()):
                # Another process may be sweeping too.
                Path(entry.path).unlink(missing_ok=True)


@cache
def _sweep_once(process: int) -> None:
    sweep()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@cache
def _prefix() -> str:
    """How the files of processes begin that are numbered together, as of one container."""
    numbered = Path("/proc/self/ns/pid")
    boot = Path("/proc/sys/kernel/random/boot_id")
    where = [str(numbered.readlink()), boot.read_text()] if numbered.exists() else [platform.node()]
    return f"nnterp-{hashlib.sha256(''.join(where).encode()).hexdigest()[:8]}-"
