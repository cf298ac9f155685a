"""What a trace costs over vLLM alone: the table of medians of paired, interleaved runs.

    python benchmarks/overhead.py [--requests 16 64 256] [--repeats 9]

A random llama of 30 blocks, 64 wide, so that overhead stands out: 32-token prompts, one new
token. Plain is vLLM's own `LLM` with the same settings, in this process like the others. Each
round runs every case once, in turn, and a case's figure is the median of its ratios to the
plain run of the same round, in process CPU time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import nnsight

import checkpoints

BLOCKS = 30
MIDDLE = 15
ONE_TOKEN = {"temperature": 0.0, "max_tokens": 1}
ENGINE = {
    "dtype": "float32",
    "max_model_len": 64,
    "kv_cache_memory_bytes": 400_000_000,
    "max_num_seqs": 256,
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
}


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(count)
    return [[draw.randrange(3, 256) for _ in range(32)] for _ in range(count)]


def one_layer_saved(model: Any, texts: list[list[int]]) -> None:
    with model.trace(**ONE_TOKEN) as tracer:
        for text in texts:
            with tracer.invoke(text):
                stream = model.layers[MIDDLE].layer_output.save()
    assert len(stream) == len(texts)


def every_layers_last_position(model: Any, texts: list[list[int]]) -> None:
    with model.trace(**ONE_TOKEN) as tracer:
        for text in texts:
            with tracer.invoke(text):
                rows = nnsight.save([])
                for layer in model.layers:
                    rows.append(layer.layer_output[:, -1])
    assert len(rows) == len(texts)


def one_layer_edited(model: Any, texts: list[list[int]]) -> None:
    with model.trace(**ONE_TOKEN) as tracer:
        for text in texts:
            with tracer.invoke(text):
                model.layers[MIDDLE].layer_output[:, -1] *= 0.5


CASES: tuple[Callable[[Any, list[list[int]]], None], ...] = (
    one_layer_saved,
    every_layers_last_position,
    one_layer_edited,
)


def cpu(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(model: Any, plain: Any, texts: list[list[int]], repeats: int) -> dict[str, float]:
    from vllm import SamplingParams

    tokens = [{"prompt_token_ids": text} for text in texts]
    runs: dict[str, Callable[[], None]] = {
        "plain": lambda: plain.generate(tokens, SamplingParams(**ONE_TOKEN), use_tqdm=False),
        "idle engine": lambda: model.vllm_entrypoint.generate(
            tokens, SamplingParams(**ONE_TOKEN), use_tqdm=False
        ),
    }
    for case in CASES:
        runs[case.__name__.replace("_", " ")] = lambda case=case: case(model, texts)
    for run in runs.values():
        run()
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        took = {name: cpu(run) for name, run in runs.items()}
        for name, seconds in took.items():
            ratios[name].append(seconds / took["plain"])
    return {name: statistics.median(found) for name, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", nargs="*", type=int, default=[16, 64, 256])
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()

    from vllm import LLM

    from nnterp import StandardizedVLLM

    checkpoints.TINY = {**checkpoints.TINY, "t30": ("llama", {"num_hidden_layers": BLOCKS})}
    with tempfile.TemporaryDirectory() as folder:
        path = str(checkpoints.make("t30", Path(folder)))
        model = StandardizedVLLM(path, dispatch=True, **ENGINE)
        plain = LLM(path, enforce_eager=True, **ENGINE)
        found = {
            count: measure(model, plain, prompts(count), arguments.repeats)
            for count in arguments.requests
        }
    print("| case | " + " | ".join(f"{count} requests" for count in found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for name in next(iter(found.values())):
        print(f"| {name} | " + " | ".join(f"{found[n][name]:.2f}x" for n in found) + " |")


if __name__ == "__main__":
    main()
