"""Identifies a process, so that another can tell whether the two share memory."""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nnterp.engines.vllm.transport import shared_files


class Address(NamedTuple):
    """Identifies a process and the shared memory that it sees.

    Attributes:
        process: An id of the process, which no process of another host or container has.
        memory: An id of the host and its shared memory, as the process sees them.
    """

    process: str
    memory: str

    @classmethod
    def own(cls) -> Address:
        """Return the address of the calling process."""
        return cls._of(os.getpid())

    @classmethod
    @cache
    def _of(cls, process: int) -> Address:
        """Return the address of the calling process, whose id is ``process``."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = boot.read_text().strip() if boot.exists() else platform.node()
        shared = shared_files.SHARED_MEMORY
        mount = os.stat(shared if os.path.isdir(shared) else "/").st_dev
        return cls(f"{_process}-{process}", f"{host}-{mount}")

    @property
    def number(self) -> int:
        """Return the process id, as the process's host knows it."""
        return int(self.process.rpartition("-")[2])

    @property
    def nearby(self) -> bool:
        """Return whether the process is on the calling process's host, and shares its memory."""
        return self.memory == Address.own().memory


#: Distinguishes processes of other hosts and containers, whose process ids may coincide.
_process = uuid.uuid4().hex
