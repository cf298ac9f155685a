"""Where a process is, for another to tell whether the two share memory."""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nnterp.engines.vllm.transport import shared_files


class Address(NamedTuple):
    """Where a process is, for another to tell how near it is.

    Attributes:
        process: The process.
        memory: The host and its shared memory, as this process sees them.
    """

    process: str
    memory: str

    @classmethod
    def own(cls) -> Address:
        """The address of the calling process."""
        return cls._of(os.getpid())

    @classmethod
    @cache
    def _of(cls, process: int) -> Address:
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = boot.read_text().strip() if boot.exists() else platform.node()
        shared = shared_files.SHARED_MEMORY
        mount = os.stat(shared if os.path.isdir(shared) else "/").st_dev
        return cls(f"{_process}-{process}", f"{host}-{mount}")

    @property
    def number(self) -> int:
        """What its host calls the process."""
        return int(self.process.rpartition("-")[2])

    @property
    def nearby(self) -> bool:
        """Whether it is on this process's host, and shares its memory."""
        return self.memory == Address.own().memory


#: Told apart from processes of other hosts and containers, whose ids may coincide.
_process = uuid.uuid4().hex
