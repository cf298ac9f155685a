"""Faults and random programs on a GPU engine.

    python tests/gpu/check_requests.py [--device cuda] [--programs 100]

Every fault between two good requests, in float32 and bfloat16, the engine in this process
and apart; and random programs of reads and edits, three in a batch, against transformers on
the same GPU: within 2e-5 in float32, in bfloat16 reported and within `BFLOAT16`. Exits with
the number of failures. Each stage is a process of its own with a time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch

import checkpoints
import fault_runs
import programs
from faults import FAULTS

CLOSE = 2e-5
#: What rounding alone makes of a few random edits; a misplaced one is of the order of 1.
BFLOAT16 = 0.15
ENGINE = {"max_model_len": 64, "kv_cache_memory_bytes": 200_000_000}
PROMPTS = [checkpoints.PROMPT[:6], checkpoints.PROMPT, checkpoints.PROMPT[5:16]]
STAGE_LIMIT = 240


def check_faults(folder: Path, dtype: str, where: str) -> int:
    """Every fault on one engine; the number that did not go as they must."""
    found = folder / f"faults.{dtype}.{where}.pt"
    arguments = json.dumps({**ENGINE, "dtype": dtype})
    apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1" if where == "apart" else "0"}
    command = [sys.executable, TESTS / "fault_runs.py", folder / "llama", found, arguments]
    subprocess.run(command, env={**os.environ, **apart}, timeout=STAGE_LIMIT, check=True)
    outcomes = torch.load(found)
    failed = 0
    for name, fault in FAULTS.items():
        wrong = fault_runs.wrong(fault, outcomes[name])
        if wrong is not None:
            failed += 1
            print(f"    FAILED {name}: {wrong}", flush=True)
    print(
        f"faults {dtype} {where}: {len(FAULTS) - failed} of {len(FAULTS)} as they must", flush=True
    )
    return failed


def check_programs(path: Path, dtype: str, device: str, count: int) -> int:
    """Random programs on one checkpoint; the number of batches that differ."""
    from nnterp import StandardizedTransformer, StandardizedVLLM

    reference = StandardizedTransformer(
        str(path),
        dispatch=True,
        device=device,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
    )
    model = StandardizedVLLM(str(path), dispatch=True, dtype=dtype, **ENGINE)
    limit = CLOSE if dtype == "float32" else BFLOAT16
    gaps = []
    for seed in range(count):
        random = Random(seed)
        drawn = programs.draw_batch(random, len(PROMPTS))
        found = programs.on_vllm(model, PROMPTS, drawn)
        gaps.append(programs.worst_gap(found, programs.on_transformers(reference, PROMPTS, drawn)))
    failed = sum(not relative_error < limit for relative_error in gaps)
    print(f"programs {dtype} {path.name}: {count}, worst gap {max(gaps):.1e}, median "
          f"{sorted(gaps)[count // 2]:.1e}, {failed} over {limit:g}", flush=True)  # fmt: skip
    return failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--only-programs", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if arguments.only_programs:
        path, dtype = arguments.only_programs
        sys.exit(min(check_programs(Path(path), dtype, arguments.device, arguments.programs), 99))
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("llama", "gemma2", "gpt2"):
            checkpoints.make(name, folder)
        stages: list[Any] = []
        for dtype in ("float32", "bfloat16"):
            stages += [(check_faults, folder, dtype, "in process")]
            for name in ("llama", "gemma2", "gpt2"):
                stages.append((run_programs, folder / name, dtype, arguments))
        stages.append((check_faults, folder, "bfloat16", "apart"))
        for stage, *given in stages:
            try:
                failed += stage(*given)
            except (subprocess.SubprocessError, OSError) as error:
                failed += 1
                print(f"FAILED {stage.__name__}: {error}", flush=True)
    print(f"{failed} failures")
    sys.exit(min(failed, 99))


def run_programs(path: Path, dtype: str, arguments: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--only-programs", path, dtype]
    command += ["--device", arguments.device, "--programs", str(arguments.programs)]
    in_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return subprocess.run(
        command, env={**os.environ, **in_process}, timeout=STAGE_LIMIT, check=False
    ).returncode


if __name__ == "__main__":
    main()
