"""Edits and reads in a compiled forward, replayed as CUDA graphs, against transformers.

    python tests/gpu/check_in_graph.py [--device cuda] [--programs 30]

Random programs of prompts with edits of their own, every value read back. Each checkpoint is a
process of its own. Exits with the number of programs that differ.
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

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.pop("TORCHDYNAMO_DISABLE", None)

import torch

import checkpoints
import in_graph

NAMES = ("llama", "gemma2", "gpt2", "qwen3", "granite")

#: Of a value's largest magnitude; the two engines add up in another order.
CLOSE = 2e-5


def check(name: str, path: Path, device: str, programs: int) -> int:
    """The number of programs that differ on one checkpoint."""
    from nnterp import StandardizedTransformer, StandardizedVLLM

    reference = StandardizedTransformer(
        path, dtype=torch.float32, attn_implementation="eager", dispatch=True
    )
    model = StandardizedVLLM(
        path,
        dispatch=True,
        edits=in_graph.PLACES,
        reads=in_graph.PLACES,
        edit_slots=48,
        directions=True,
        dtype="float32",
        max_model_len=64,
        max_num_batched_tokens=256,
        max_num_seqs=16,
        kv_cache_memory_bytes=200_000_000 if device == "cuda" else 50_000_000,
    )
    compiled = model.vllm_entrypoint.llm_engine.vllm_config.compilation_config
    print(f"{name}: {compiled.mode!r}, {compiled.cudagraph_mode!r}", flush=True)
    failures, worst = int(not compiled.mode), 0.0
    for seed in range(programs):
        given = in_graph.program(model, seed)
        apart = in_graph.gap(in_graph.run(model, given), in_graph.run(reference, given))
        worst = max(worst, apart)
        if not apart < CLOSE:
            failures += 1
            print(f"{name}: program {seed} is {apart:.1e} apart: {given}", flush=True)
    print(f"{name}: {programs} programs, worst {worst:.1e}, {failures} failures", flush=True)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--programs", type=int, default=30)
    parser.add_argument("--names", nargs="*", default=NAMES)
    parser.add_argument("--checkpoints", type=Path, help="where there are some already")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        name, path = arguments.run
        sys.exit(min(check(name, Path(path), arguments.device, arguments.programs), 100))
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            there = arguments.checkpoints and arguments.checkpoints / name
            path = there if there and there.exists() else checkpoints.make(name, Path(folder))
            command = [sys.executable, __file__, "--device", arguments.device]
            command += ["--programs", str(arguments.programs), "--run", name, str(path)]
            failures += subprocess.run(command, timeout=400).returncode
    print(f"{failures} failures")
    sys.exit(min(failures, 100))


if __name__ == "__main__":
    main()
