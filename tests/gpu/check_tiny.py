"""The tiny checkpoints of every family on a GPU, for `nnterp.measured`.

    python tests/gpu/check_tiny.py [--names NAME ...] [--at-once 14] [--results FILE.json]
    python tests/gpu/check_tiny.py --merge FILE.json

The first makes each checkpoint that the suite holds against vLLM, runs it on both engines in a
process of its own, several of them on the GPU at a time, and prints what does not hold; then
those that are held against transformers alone. What came of them, on the releases that are
installed, is written to ``FILE.json``, and in words to ``FILE.txt``. It exits with the number
that do not hold. The second, on any machine, adds a file to what nnterp looks up as a
checkpoint is loaded, and to the table of families.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Read as torch and vLLM are imported. There is a core for each process, whose kernels are few.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
# Asked about a GPU through its driver, a process can no longer be forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tiny_runs
from nnterp.advice import measured
from tiny import TINY

#: The seconds after which a checkpoint's process is ended.
EACH_WITHIN = 150


def check(
    names: Sequence[str], device: str, at_once: int, within: float
) -> Iterator[tuple[str, tiny_runs.Run]]:
    """Run checkpoints, and print of each whether it holds."""
    with tempfile.TemporaryDirectory() as folder:
        for name, done in tiny_runs.run_all(
            names,
            Path(folder),
            device=device,
            at_once=at_once,
            each_within=EACH_WITHIN,
            all_within=within,
        ):
            if done.unmade:
                print(f"{name}: this transformers cannot make it", flush=True)
                continue
            print(tiny_runs.headline(name, done), flush=True)
            for text in tiny_runs.failures(name, done)[:4]:
                print(f"    {tiny_runs.said(text)[:200]}", flush=True)
            yield name, done


def main() -> None:
    parser = argparse.ArgumentParser()
    on_both = [name for name, row in TINY.items() if not row.not_on_vllm]
    alone = [name for name in TINY if name not in on_both]
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--names", nargs="*", default=[*on_both, *alone])
    parser.add_argument("--at-once", type=int, default=14, help="processes that share the GPU")
    parser.add_argument("--within", type=float, default=330, help="seconds to begin others in")
    parser.add_argument("--results", type=Path, help="where to write what came of them")
    parser.add_argument("--merge", type=Path, help="results to add to what nnterp looks up")
    arguments = parser.parse_args()
    if arguments.merge:
        tiny_runs.add_measured(measured.loads(arguments.merge.read_text()))
        return
    began = time.monotonic()
    runs = dict(check(arguments.names, arguments.device, arguments.at_once, arguments.within))
    if arguments.results:
        arguments.results.write_text(measured.dumps(tiny_runs.measurement(runs)))
        told = [text for name, done in runs.items() for text in tiny_runs.report(name, done)]
        arguments.results.with_suffix(".txt").write_text("\n".join(told))
    held = [name for name, done in runs.items() if not tiny_runs.failures(name, done)]
    left = [name for name in arguments.names if name not in runs]
    print(f"not run: {' '.join(left) or 'none'}")
    print(f"{len(held)} of {len(runs)} hold ({time.monotonic() - began:.0f} s)")
    sys.exit(min(len(runs) - len(held), 99))


if __name__ == "__main__":
    main()
