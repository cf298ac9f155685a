"""An engine where shared memory is small, as in a container, and disk is no larger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import checkpoints
from conftest import TINY_ENGINE

PROGRAM = """
import nnsight
import torch
from nnterp import StandardizedVLLM

LARGE = 20_000_000

if __name__ == "__main__":
    model = StandardizedVLLM({path!r}, dispatch=True, **{engine!r})

    def large(value):
        return torch.zeros(LARGE // 2)

    # One prompt after another, so that all results have a place before any is full.
    wanted = {{"layers.*.layer_input": large, "layers.*.layer_output": large}}

    try:
        model.collect([{prompt!r}] * 3, wanted, batch_size=1)
    except RuntimeError as error:
        print(str(error).splitlines()[0])

    kept = None
    try:
        with model.trace(temperature=0.0, max_tokens=1) as tracer:
            kept = nnsight.save([None, None])
            with tracer.invoke({prompt!r}):
                kept[0] = model.layers[0].layer_output
            with tracer.invoke({prompt!r}):
                kept[1] = torch.zeros(LARGE)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    print([None if one is None else tuple(one.shape) for one in kept])

    found = model.collect([{prompt!r}] * 3, {{"layers.0.layer_output": "last"}})
    print(tuple(found["layers.0.layer_output"].shape))
"""

#: Seen by this program alone. vLLM's own queues are the most of what the first can hold; the names
#: of its sockets are made of the second's, and have to be short.
MOUNT = (
    "mount -t tmpfs -o size=250m none /dev/shm && mount -t tmpfs -o size=16m none /mnt "
    "&& TMPDIR=/mnt exec {python} {program}"
)


def test_what_has_no_room_fails_alone_and_the_engine_goes_on(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]).returncode:
        pytest.skip("this process may not mount anything")
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(
            path=str(tiny_folder("llama")), engine=TINY_ENGINE, prompt=checkpoints.PROMPT
        )
    )
    command = MOUNT.format(python=sys.executable, program=program)
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = r"OSError: [Errno 28] {} MB of values have no room in /dev/shm or "
    collected, saved, kept, found = ended.stdout.splitlines()[-4:]
    assert collected.startswith(said.format(120))
    assert saved.startswith(said.format(80))
    assert kept == "[(1, 20, 64), None]"
    assert found == "(3, 64)"
