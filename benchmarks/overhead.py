"""What looking costs over vLLM alone: the table of medians of paired, interleaved runs.

    python benchmarks/overhead.py [--requests 16 64 256] [--repeats 9] [--no-nnsight]

A random llama of 30 blocks, 64 wide, so that overhead stands out: 32-token prompts, one new
token. Plain is vLLM's own `LLM` with the same settings. Each round runs every case once, in
an order of its own; a figure is the median of a case's ratios to the plain run of the same
round, on the clock and, where the engine is in this process, in process CPU time. With
VLLM_ENABLE_V1_MULTIPROCESSING=1 each engine has a process of its own; give them a core that
is not the caller's then (VLLM_CPU_OMP_THREADS_BIND=0), or they take each other's.

The machine must be otherwise idle: one busy core makes every thread of the engine wait.
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
from tiny import Tiny

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


def nnsight_one_layer_saved(model: Any, texts: list[list[int]]) -> None:
    with model.trace(**ONE_TOKEN) as tracer:
        for text in texts:
            with tracer.invoke(text):
                output = model.model.layers[MIDDLE].output
                stream = (output[0] + output[1]).save()
    assert len(stream) == len(texts)


def collect(layers: str, positions: str) -> Callable[[Any, list[list[int]]], None]:
    def run(model: Any, texts: list[list[int]]) -> None:
        found = model.collect(texts, {f"layers.{layers}.layer_output": positions}, progress=False)
        assert all(len(rows) == len(texts) for rows in found.values())

    return run


CASES: dict[str, Callable[[Any, list[list[int]]], None]] = {
    "one layer saved": one_layer_saved,
    "every layer's last position saved": every_layers_last_position,
    "one layer edited": one_layer_edited,
    "collect one layer, last position": collect(str(MIDDLE), "last"),
    "collect one layer, all positions": collect(str(MIDDLE), "all"),
    "collect every layer, last position": collect("*", "last"),
    "collect every layer, all positions": collect("*", "all"),
}


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds on the clock, and of this process's CPU time."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - cpu


def generate(engine: Any, texts: list[list[int]]) -> list[list[int]]:
    from vllm import SamplingParams

    tokens = [{"prompt_token_ids": text} for text in texts]
    outputs = engine.generate(tokens, SamplingParams(**ONE_TOKEN), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def measure(
    model: Any, plain: Any, raw: Any, texts: list[list[int]], repeats: int
) -> dict[str, tuple[float, float]]:
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: generate(plain, texts),
        "idle engine": lambda: generate(model.vllm_entrypoint, texts),
        **{name: (lambda case=case: case(model, texts)) for name, case in CASES.items()},
    }
    if raw is not None:
        runs["nnsight alone, one layer saved"] = lambda: nnsight_one_layer_saved(raw, texts)
    assert runs["plain"]() == runs["idle engine"](), "an idle engine draws other tokens"
    for run in runs.values():
        run()
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for round_ in range(repeats):
        # In another order each round, for what runs before leaves its mark on caches.
        for name in random.Random(round_).sample(list(runs), len(runs)):
            took[name].append(timed(runs[name]))

    def ratio(name: str, clock: int) -> float:
        pairs = zip(took[name], took["plain"], strict=True)
        return statistics.median(own[clock] / base[clock] for own, base in pairs)

    return {name: (ratio(name, 0), ratio(name, 1)) for name in runs}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", nargs="*", type=int, default=[16, 64, 256])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-nnsight", action="store_true", help="leave out nnsight alone")
    arguments = parser.parse_args()
    apart = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0"

    from vllm import LLM

    from nnterp import StandardizedVLLM

    t30 = {"num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2}
    with tempfile.TemporaryDirectory() as folder:
        path = str(checkpoints.write(Tiny("llama", t30), Path(folder) / "t30"))
        model = StandardizedVLLM(path, dispatch=True, **ENGINE)
        plain = LLM(path, enforce_eager=True, **ENGINE)
        raw = None
        if not arguments.no_nnsight and not apart:
            from raw_nnsight import RawVLLM

            raw = RawVLLM(path, dispatch=True, **ENGINE)
        found = {
            count: measure(model, plain, raw, prompts(count), arguments.repeats)
            for count in arguments.requests
        }
    print("| case | " + " | ".join(f"{count} requests" for count in found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for name in next(iter(found.values())):
        cells = [found[count][name] for count in found]
        shown = [f"{clock:.2f}x" if apart else f"{clock:.2f}x ({cpu:.2f}x)" for clock, cpu in cells]
        print(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
