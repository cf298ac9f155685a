"""The families on a GPU engine, against transformers on the same GPU.

    python tests/gpu/check_families.py [--device cuda] [--names NAME ...] [--model FOLDER ...]

For each tiny family and each ``--model``: in float32 every value, and every edit's effect,
within 2e-5 of transformers eager; in bfloat16 the differences beside those of transformers
sdpa against eager; in both, nothing that was saved is overwritten later, and what attention
and MLP add to the stream is the difference between a block's output and its input. Exits
with the number of failures. Each stage is a process of its own with a time limit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import torch

import checkpoints
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from tiny import TINY

CLOSE = {"float32": 2e-5, "bfloat16": None}
IDENTITY = {"float32": 1e-6, "bfloat16": 2e-2}
STAGE_LIMIT = 420


def compare(name: str, folder: Path, dtype: str) -> int:
    """Hold one checkpoint's engine against its reference; the number of failures."""
    from nnterp import StandardizedVLLM

    expected = torch.load(folder / f"{name}.{dtype}.pt")
    model = StandardizedVLLM(
        str(folder / name),
        dispatch=True,
        dtype=dtype,
        max_model_len=64,
        kv_cache_memory_bytes=200_000_000,
    )
    failures = []
    found = readings.values(model, checkpoints.PROMPT)
    gaps = {key: relative_error(found[key], want) for key, want in expected["values"].items()}
    edits = readings.edits(model, checkpoints.PROMPT)
    edit_gaps = {key: relative_error(edits[key], want) for key, want in expected["edits"].items()}
    limit = CLOSE[dtype]
    if limit is not None:
        failures += [f"{k} {g:.1e}" for k, g in {**gaps, **edit_gaps}.items() if not g < limit]
    for block in range(model.num_layers):
        entering, leaving = found[f"{block}.layer_input"], found[f"{block}.layer_output"]
        added = found[f"{block}.attention_output"] + found[f"{block}.mlp_output"]
        if not relative_error(entering + added, leaving) < IDENTITY[dtype]:
            failures.append(f"identity of block {block}")
    failures += [f"{key} overwritten" for key in readings.overwritten(model, checkpoints.PROMPT)]

    by_value: dict[str, float] = {}
    for key, size in gaps.items():
        kind = key.rpartition(".")[2]
        by_value[kind] = max(by_value.get(kind, 0.0), size)
    print(
        f"{name} {dtype}: worst value {max(gaps.values()):.1e}, worst edit "
        f"{max(edit_gaps.values()):.1e}, {len(gaps)} values, {len(edit_gaps)} edits",
        flush=True,
    )
    if "sdpa" in expected:
        for kind, size in by_value.items():
            pairs = [
                relative_error(want, expected["values"][key])
                for key, want in expected["sdpa"].items()
                if key.rpartition(".")[2] == kind
            ]
            beside = f"{max(pairs):.1e}" if pairs else "-"
            print(f"    {kind:24} vllm/eager {size:.1e}   sdpa/eager {beside}", flush=True)
    else:
        print(
            "    " + "  ".join(f"{kind} {size:.0e}" for kind, size in by_value.items()), flush=True
        )
    for failure in failures:
        print(f"    FAILED {failure}", flush=True)
    return len(failures)


def stage(*command: object) -> int:
    """Run one stage of this check in a process of its own."""
    try:
        return subprocess.run(
            [sys.executable, *map(str, command)], timeout=STAGE_LIMIT, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"FAILED {command[0]}: no end within {STAGE_LIMIT} s", flush=True)
        return 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--names", nargs="*", default=list(TINY))
    parser.add_argument("--model", nargs="*", type=Path, default=[])
    parser.add_argument("--dtypes", nargs="*", default=list(CLOSE))
    parser.add_argument("--compare", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = list(arguments.names)
    if arguments.compare:
        failed = 0
        for name in names:
            failed += compare(name, arguments.compare, arguments.dtypes[0])
        sys.exit(min(failed, 99))

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for model in arguments.model:
            (folder / model.name).symlink_to(model.resolve())
            names.append(model.name)
        failed = 0
        for dtype in arguments.dtypes:
            failed += stage(
                TESTS / "references.py",
                folder,
                "--device",
                arguments.device,
                "--dtype",
                dtype,
                "--names",
                *names,
            )
            failed += stage(__file__, "--compare", folder, "--dtypes", dtype, "--names", *names)
    print(f"{failed} failures")
    sys.exit(min(failed, 99))


if __name__ == "__main__":
    main()
