"""Engines in processes of their own, as users run them by default.

Whether vLLM's engine shares the caller's process is settled as vLLM is imported, so an
engine apart needs a caller apart: ``python apart.py CHECKPOINT FILE JSON`` builds one with
the engine arguments in ``JSON`` and writes to ``FILE`` what it serves and where it ran.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import checkpoints
import collects
from nnterp.tools.checking import readings


def serve(path: Path, to: Path, **arguments: Any) -> dict[str, Any]:
    """Every value and edit of the checkpoint at ``path``, from an engine apart."""
    run([str(Path(__file__)), str(path), str(to), json.dumps(arguments)])
    return torch.load(to)


def run(command: list[str], **environment: str) -> str:
    """Run a Python program whose engine is in processes of its own; what it printed."""
    ended = subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "0|1",  # a core for each of two ranks
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def main(path: str, to: str, arguments: str) -> None:
    from nnterp import StandardizedVLLM

    model = StandardizedVLLM(path, dispatch=True, **json.loads(arguments))
    found = {
        "values": readings.values(model, checkpoints.PROMPT),
        "edits": readings.edits(model, checkpoints.PROMPT),
        "collected": collects.flat(model.collect(collects.PROMPTS, collects.wanted(model))),
        "client": type(model.vllm_entrypoint.llm_engine.engine_core).__name__,
    }
    torch.save(found, to)


if __name__ == "__main__":
    main(*sys.argv[1:])
