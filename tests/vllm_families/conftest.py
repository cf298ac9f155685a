"""The runs of every tiny checkpoint, under way in the background while they are judged."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from conftest import HERE
from tiny_runs import Run


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Run]]:
    """What became of a tiny checkpoint, once it has been run."""
    folder = tmp_path_factory.mktemp("runs")
    running = subprocess.Popen([sys.executable, HERE / "tiny_runs.py", folder])
    known: dict[str, Run] = {}

    def wait(name: str) -> Run:
        while name not in known:
            file: Path = folder / f"{name}.pt"
            if file.exists():
                known[name] = torch.load(file, weights_only=False)
            else:
                assert running.poll() is None, f"the runs ended without {name}"
                time.sleep(0.2)
        return known[name]

    yield wait
    running.kill()
