"""Engines and references shared by the suites.

An engine takes seconds to start and the first in a process the longest, so each is
started once, in this process, and kept; what needs one of its own says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Read by vLLM as it is imported and as an engine is built.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).parent
import pytest
import torch

import checkpoints
import inplace_norms
import inspected
import selected
from tiny import ROWS
from tiny_runs import Run

if inplace_norms.imitated():
    inplace_norms.imitate()

#: What an engine for a tiny checkpoint needs, and no more.
TINY_ENGINE = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 50_000_000}


#: Checkpoints that differ in kind: fused pairs and single tensors, sandwiched, with windows
#: and caps, with names of their own, native to vLLM and on its Transformers backend.
KINDS = ("llama", "qwen2", "gemma2", "gpt2", "gpt_neox")


@pytest.fixture(scope="session")
def reference(
    request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]
) -> Callable[[str], dict[str, Any]]:
    """What transformers says of a checkpoint: its values, edits and what it collects.

    The first to be asked for is made together with all that the selected tests name.
    """

    items = request.session.items

    def say(name: str) -> dict[str, Any]:
        folder = tiny_folder(name).parent
        if not (folder / f"{name}.float32.pt").exists():
            together = {name: None, **dict.fromkeys(selected.names(items, "reference"))}
            for each in together:
                tiny_folder(each)
            command = [sys.executable, HERE / "references.py", folder, "--names", *together]
            subprocess.run(command, check=True)
        return torch.load(folder / f"{name}.float32.pt")

    return say


@pytest.fixture(scope="session")
def run_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Run]]:
    """What became of a tiny checkpoint on both engines, once it has been run.

    The runs of all that the selected tests ask for are under way in the background, in the
    tests' order, while the first are judged.
    """
    names = selected.names(request.session.items, "run_of", every=list(ROWS))
    with runs_in(tmp_path_factory.mktemp("runs"), "--names", *names) as run_of:
        yield run_of


@contextlib.contextmanager
def runs_in(folder: Path, *arguments: str) -> Iterator[Callable[[str], Run]]:
    """What `tiny_runs` with ``arguments`` makes of a checkpoint, once it has."""
    running = subprocess.Popen([sys.executable, HERE / "tiny_runs.py", folder, *arguments])
    known: dict[str, Run] = {}

    def wait(name: str) -> Run:
        file = folder / f"{name}.pt"
        while name not in known:
            if file.exists():
                known[name] = torch.load(file, weights_only=False)
            else:
                assert running.poll() is None, f"the runs ended without {name}"
                time.sleep(0.2)
        return known[name]

    try:
        yield wait
    finally:
        running.kill()


@pytest.fixture(scope="session")
def keep() -> Callable[[Any], Any]:
    """Keep an engine of this process alive to the end of the session.

    vLLM's engines in one process share its process groups, and the first to be collected
    takes them down for all.
    """
    inspected.here()
    kept: list[Any] = []

    def hold(model: Any) -> Any:
        kept.append(model)
        return model

    return hold


@pytest.fixture(scope="session")
def engine(tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]) -> Callable[[str], Any]:
    """The vLLM engine of a tiny checkpoint, in this process."""
    from nnterp import StandardizedVLLM

    started: dict[str, Any] = {}

    def start(name: str) -> Any:
        if name not in started:
            path = str(tiny_folder(name))
            started[name] = keep(StandardizedVLLM(path, dispatch=True, **TINY_ENGINE))
        return started[name]

    return start


@pytest.fixture(scope="session")
def transformer(tiny_folder: Callable[[str], Path]) -> Any:
    """The tiny llama on transformers, in this process."""
    from nnterp import StandardizedTransformer

    path = str(tiny_folder("llama"))
    return StandardizedTransformer(path, dispatch=True, attn_implementation="eager")


@pytest.fixture(scope="session", params=["vllm", "transformers"])
def either(request: pytest.FixtureRequest, engine: Callable[[str], Any], transformer: Any) -> Any:
    """The tiny llama on each engine in turn: the same weights."""
    return engine("llama") if request.param == "vllm" else transformer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint, made on first use, with nothing run on it."""
    folder = tmp_path_factory.mktemp("tiny")
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = checkpoints.make(name, folder)
        return made[name]

    return make


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they save where tensors are as small as a tiny checkpoint's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def smollm2(keep: Callable[[Any], Any]) -> Any:
    """The vLLM engine of SmolLM2-135M-Instruct, in this process."""
    from nnterp import StandardizedVLLM
    from nnterp.engines import gguf

    return keep(
        StandardizedVLLM(
            str(gguf.smollm2()),
            dispatch=True,
            dtype="float32",
            max_model_len=256,
            kv_cache_memory_bytes=200_000_000,
        )
    )
