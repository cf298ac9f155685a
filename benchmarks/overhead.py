"""What looking costs over vLLM alone: the table of medians of paired, interleaved runs.

    python benchmarks/overhead.py [--requests 16 64 256] [--repeats 9] [--no-nnsight]

A random llama of 30 blocks, 64 wide, so that overhead stands out: 32-token prompts, one new
token, or eight where a case says so. Plain is vLLM's own `LLM` with the same settings. Each
round runs every case once, in an order of its own; a figure is the median of a case's ratios to
the plain run of the same round, on the clock and, where the engine is in this process, in
process CPU time. With VLLM_ENABLE_V1_MULTIPROCESSING=1 each engine has a process of its own; give
them a core that is not the caller's then (VLLM_CPU_OMP_THREADS_BIND=0), or they take each other's.

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
import torch

import checkpoints
from nnterp import Add, Edit, Read
from tiny import Tiny

BLOCKS = 30
MIDDLE = 15
ONE_TOKEN = {"temperature": 0.0, "max_tokens": 1}
EIGHT = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
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


def vectors(count: int) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(count))


def edited_as_data(layer: Callable[[int], int]) -> Callable[[Any, list[list[int]]], None]:
    """Every request with a vector of its own, at every step, in the block that ``layer`` says."""

    def run(model: Any, texts: list[list[int]]) -> None:
        edits: list[list[Edit]] = [
            [Add(f"layers.{layer(index)}.layer_output", vector)]
            for index, vector in enumerate(vectors(len(texts)))
        ]
        done = model.run(texts, edits=edits, max_tokens=8, ignore_eos=True, progress=False)
        assert len(done.tokens) == len(texts)

    return run


def edited_by_a_trace(model: Any, texts: list[list[int]]) -> None:
    every = vectors(len(texts))
    with model.trace(**EIGHT) as tracer:
        for index, text in enumerate(texts):
            vector = every[index].clone()
            with tracer.invoke(text):
                for _ in tracer.iter[:8]:
                    model.layers[MIDDLE].layer_output[:] += vector


def read_as_data(model: Any, texts: list[list[int]]) -> None:
    reads = [Read(f"layers.{MIDDLE}.layer_output")]
    done = model.run(texts, reads=reads, max_tokens=8, ignore_eos=True, progress=False)
    assert len(done.values) == 1


#: Cases of eight tokens.
GENERATED: dict[str, Callable[[Any, list[list[int]]], None]] = {
    "8 tokens, each edited at every step by a trace": edited_by_a_trace,
    "8 tokens, each edited at every step as data, one layer": edited_as_data(lambda index: MIDDLE),
    "8 tokens, the same, a layer of its own each": edited_as_data(lambda index: index % BLOCKS),
    "8 tokens, one layer read at every step as data": read_as_data,
}

CASES: dict[str, Callable[[Any, list[list[int]]], None]] = {
    "one layer saved": one_layer_saved,
    "every layer's last position saved": every_layers_last_position,
    "one layer edited": one_layer_edited,
    "collect one layer, last position": collect(str(MIDDLE), "last"),
    "collect one layer, all positions": collect(str(MIDDLE), "all"),
    "collect every layer, last position": collect("*", "last"),
    "collect every layer, all positions": collect("*", "all"),
}


#: What the cases of eight tokens are held against.
EIGHT_PLAIN = "8 tokens, plain"


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds on the clock, and of this process's CPU time."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - cpu


def generate(
    engine: Any, texts: list[list[int]], settings: dict[str, Any] = ONE_TOKEN
) -> list[list[int]]:
    from vllm import SamplingParams

    tokens = [{"prompt_token_ids": text} for text in texts]
    outputs = engine.generate(tokens, SamplingParams(**settings), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def measure(
    model: Any, plain: Any, raw: Any, texts: list[list[int]], repeats: int
) -> dict[str, tuple[float, float]]:
    runs: dict[str, Callable[[], Any]] = {
        "plain": lambda: generate(plain, texts),
        "idle engine": lambda: generate(model.vllm_entrypoint, texts),
        EIGHT_PLAIN: lambda: generate(plain, texts, EIGHT),
        **{
            name: (lambda case=case: case(model, texts))
            for name, case in {**CASES, **GENERATED}.items()
        },
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
        base = EIGHT_PLAIN if name in GENERATED else "plain"
        pairs = zip(took[name], took[base], strict=True)
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
