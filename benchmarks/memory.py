"""The memory of the caller and of the worker while two gigabytes are collected.

    python benchmarks/memory.py [--gigabytes 2]

All positions of every layer of a random llama of 30 blocks, 64 wide, with the engine in a
process of its own. Sampled through the run: what is each process's alone, and what the two
share, which is the result itself.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import checkpoints
from tiny import Tiny

BLOCKS = 30
TOKENS = 120
WIDTH = 64


def resident(process: int) -> tuple[float, float]:
    """Gigabytes a process holds alone, and in shared memory."""
    fields = {}
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    alone = sum(int(fields[name][0]) for name in ("RssAnon", "RssFile"))
    return alone / 1e6, int(fields["RssShmem"][0]) / 1e6


def descendants(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [own for child in map(int, children) for own in (child, *descendants(child))]


class Watch(threading.Thread):
    """Samples the memory of some processes until told to stop."""

    def __init__(self, processes: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._processes = processes
        self._ended = threading.Event()
        self.peaks = dict.fromkeys(processes, (0.0, 0.0))

    def run(self) -> None:
        while not self._ended.wait(0.05):
            for name, process in self._processes.items():
                self.peaks[name] = tuple(map(max, self.peaks[name], resident(process)))

    def end(self) -> None:
        self._ended.set()
        self.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=2.0)
    arguments = parser.parse_args()

    from nnterp import StandardizedVLLM

    t30 = {"num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2}
    draw = random.Random(0)
    count = round(arguments.gigabytes * 1e9 / (BLOCKS * WIDTH * 4 * TOKENS))
    ids = [[draw.randrange(3, 256) for _ in range(TOKENS)] for _ in range(count)]
    wanted = {"layers.*.layer_output": "all"}
    with tempfile.TemporaryDirectory() as folder:
        path = str(checkpoints.write(Tiny("llama", t30), Path(folder) / "t30"))
        model = StandardizedVLLM(
            path,
            dispatch=True,
            dtype="float32",
            max_model_len=128,
            kv_cache_memory_bytes=400_000_000,
        )
        model.collect(ids[:64], wanted, progress=False)
        workers = [own for own in descendants(os.getpid()) if resident(own)[0] > 0.2]
        processes = {"caller": os.getpid(), **{f"worker {own}": own for own in workers}}
        before = {name: resident(process) for name, process in processes.items()}
        watch = Watch(processes)
        watch.start()
        found = model.collect(ids, wanted)
        size = sum(rows.rows.nbytes for rows in found.values()) / 1e9
        total = sum(rows.rows.double().sum().item() for rows in found.values())
        watch.end()
    print(f"{count} prompts, {size:.2f} GB collected (sum {total:.3e})")
    print("| process | alone before | alone at most | shared at most |\n|---|---|---|---|")
    for name, (alone, shared) in watch.peaks.items():
        print(f"| {name} | {before[name][0]:.2f} GB | {alone:.2f} GB | {shared:.2f} GB |")


if __name__ == "__main__":
    main()
