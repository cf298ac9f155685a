"""Every tiny checkpoint on both engines, each in a process of its own.

    python tests/tiny_runs.py FOLDER [--names NAME ...] [--engines transformers vllm] [--report]

A process that has imported both engines forks one for each checkpoint, which takes seconds
where an interpreter of its own would take half a minute; and what vLLM's Transformers backend
does to transformers' classes ends with it. Writes ``FOLDER/NAME.pt``: a `Run`.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Read by vLLM as it is imported. Two run at a time, on a core each.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch

import checkpoints
import collects
from nnterp.checking.findings import Findings, examine
from nnterp.checking.verdict import CLOSE, Line, between, on_its_own
from tiny import TINY

#: What an engine for a tiny checkpoint needs, and no more.
ENGINE = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 50_000_000}


@dataclass
class Run:
    """What became of one checkpoint.

    Attributes:
        found: The findings of each engine.
        collected: What each engine's `collect` kept.
        error: The traceback of what went wrong, if anything.
    """

    found: dict[str, Findings] = field(default_factory=dict)
    collected: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    error: str = ""


def load(name: str, path: Path, engine: str) -> Any:
    if engine == "vllm":
        from nnterp import StandardizedVLLM

        return StandardizedVLLM(str(path), dispatch=True, **ENGINE)
    from nnterp import StandardizedTransformer

    return StandardizedTransformer(
        str(path),
        dispatch=True,
        device="cpu",
        dtype=torch.float32,
        attn_implementation=TINY[name].attention,
    )


def run(name: str, folder: Path, engines: Sequence[str]) -> Run:
    """Examine the checkpoint ``name``; transformers first, whose classes vLLM may change."""
    done = Run()
    try:
        path = checkpoints.make(name, folder)
        for engine in sorted(engines):
            if engine == "vllm" and TINY[name].not_on_vllm:
                continue
            model = load(name, path, engine)
            done.found[engine] = examine(model, checkpoints.PROMPT)
            kept = model.collect(collects.PROMPTS, collects.wanted(model))
            done.collected[engine] = collects.flat(kept)
    except Exception:
        done.error = traceback.format_exc()
    return done


def limit(name: str, line: Line) -> tuple[float, str]:
    """How far ``line`` of the checkpoint ``name`` may be off, and the cause if not by rounding."""
    limits = TINY[name].limits
    for key in (line.kind, line.key.rpartition(".")[2]):
        if key in limits:
            return limits[key]
    return line.limit, ""


def lines(done: Run) -> list[Line]:
    """Everything that a run is held against."""
    held = [line for own in done.found.values() for line in on_its_own(own)]
    if len(done.found) == 2:
        held += between(done.found["vllm"], done.found["transformers"], CLOSE)
    return held


def failures(name: str, done: Run) -> list[str]:
    """What is not as it must be, in words."""
    failed = [done.error] if done.error else []
    for line in lines(done):
        if not line.passed and not line.size < limit(name, line)[0]:
            failed.append(f"{line.kind} {line.key}: {line.note or f'{line.size:.1e}'}")
    return failed


def write(name: str, folder: Path, engines: Sequence[str]) -> None:
    partial = folder / f"{name}.partial"
    torch.save(run(name, folder, engines), partial)
    partial.rename(folder / f"{name}.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=list(TINY))
    parser.add_argument("--engines", nargs="*", default=["transformers", "vllm"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="print what fails, and how far off")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    import vllm.entrypoints.llm  # imported here, once, for every child

    from nnterp import StandardizedTransformer, StandardizedVLLM

    assert vllm and StandardizedTransformer and StandardizedVLLM
    running: dict[int, str] = {}
    waiting = list(arguments.names)
    while waiting or running:
        while waiting and len(running) < arguments.workers:
            name = waiting.pop(0)
            child = os.fork()
            if not child:
                torch.set_num_threads(1)
                if not arguments.report:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                write(name, arguments.folder, arguments.engines)
                sys.stdout.flush()
                os._exit(0)
            running[child] = name
        child, status = os.wait()
        name = running.pop(child)
        file = arguments.folder / f"{name}.pt"
        if status or not file.exists():
            torch.save(Run(error=f"the process ended with status {status}"), file)
        if arguments.report:
            report(name, torch.load(file, weights_only=False))


def report(name: str, done: Run) -> None:
    failed = failures(name, done)
    worst: dict[str, float] = {}
    for line in lines(done):
        if line.kind != "effect":
            worst[line.kind] = max(worst.get(line.kind, 0.0), line.size)
    sizes = "  ".join(f"{kind} {size:.0e}" for kind, size in worst.items())
    print(f"{name}: {'FAILED' if failed else 'ok'}  {sizes}", flush=True)
    for text in failed[:40]:
        print(f"    {text}", flush=True)
    for own in done.found.values():
        told = {f"{key.rpartition('.')[2]}: {reason[:150]}" for key, reason in own.missing.items()}
        for text in sorted(told):
            if "dense" not in text and "chooses the experts" not in text:
                print(f"    not on {own.engine}: {text}", flush=True)


if __name__ == "__main__":
    main()
