"""What reads and edits as data cost on CUDA graphs: an 8B-shaped llama in bfloat16, random weights.

    python benchmarks/gpu/interventions.py [--rounds 5] [--counts 1 8 64]

Prompts of 512 tokens, 128 new ones. Plain is vLLM's own `LLM`, compiled and on full CUDA graphs;
beside it an engine with edits of every block's stream and reads of one in its compiled forward, and
one with every stream tapped, whose traces do the same. Every round runs every case once, in turn;
a figure is the median of a case, a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import nnsight
import torch
from graphs import ENGINE, NEW, SIZES, Case, generate, make, measure, prompts

DECODE = {"temperature": 0.0, "max_tokens": NEW, "ignore_eos": True}
EVERY = "layers.*.layer_output"


def vectors(count: int, width: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(width, generator=draw) for _ in range(count)]


def traced(model: Any, ids: list[list[int]], layer: int, vector: torch.Tensor | None) -> None:
    """Every request reads its stream at every step, or adds a vector to it."""
    with model.trace(**DECODE) as tracer:
        for prompt in ids:
            with tracer.invoke(prompt):
                rows = nnsight.save([])
                for _ in tracer.iter[:NEW]:
                    if vector is None:
                        rows.append(model.layers[layer].layer_output[:, -1])
                    else:
                        stream = model.layers[layer].layer_output
                        stream[:] += vector.to(stream.device, stream.dtype)


def report(title: str, took: dict[str, list[float]], steps: int) -> None:
    plain = took["plain"]
    print(f"\n{title}\n| case | median | speed of plain | a step |\n|---|---|---|---|", flush=True)
    for name, seconds in took.items():
        pairs = list(zip(seconds, plain, strict=True))
        speed = statistics.median(base / own for own, base in pairs)
        more = statistics.median(own - base for own, base in pairs) * 1e3 / steps
        print(
            f"| {name} | {statistics.median(seconds) * 1e3:.1f} ms | {speed:.3f} "
            f"| {more:+.2f} ms |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--counts", type=int, nargs="*", default=[64, 8, 1])
    parser.add_argument("--engines", nargs="*", default=["in graph", "directed", "tapped"])
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"

    from vllm import LLM

    from nnterp import Add, ProjectOut, Read, StandardizedVLLM

    folder = Path(tempfile.mkdtemp())
    path = make(arguments.size, folder)
    config = json.loads((Path(path) / "config.json").read_text())
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    middle = layers // 2
    stream = f"layers.{middle}.layer_output"
    memory = 12 << 30 if on_gpu else 400_000_000
    engine = {**ENGINE, "kv_cache_memory_bytes": memory}
    if not on_gpu:
        engine |= {"max_num_batched_tokens": 8192}

    def start(name: str, build: Case) -> Any:
        began = time.perf_counter()
        made = build() if name == "plain" or name in arguments.engines else None
        print(f"{name}: ready in {time.perf_counter() - began:.0f} s", flush=True)
        return made

    def compiled(**more: Any) -> Any:
        return StandardizedVLLM(
            path, dispatch=True, edits=[EVERY], reads=[stream], **{**engine, **more}
        )

    # The tapped one last, for it has vLLM break the graphs of every engine after it.
    plain = start("plain", lambda: LLM(path, enforce_eager=not on_gpu, **engine))
    ours = start("in graph", compiled)
    directed = start("directed", lambda: compiled(directions=True))
    tapped = start(
        "tapped",
        lambda: StandardizedVLLM(path, dispatch=True, taps=[EVERY] if on_gpu else (), **engine),
    )
    drawn = vectors(64, width)

    def run(model: Any, ids: list[list[int]], new: int = NEW, **asked: Any) -> Case:
        return lambda: model.run(ids, max_tokens=new, ignore_eos=True, progress=False, **asked)

    for count in arguments.counts:
        ids = prompts(count)
        one_each = [[Add(stream, drawn[index], factor=0.1)] for index in range(count)]
        pairs = [
            [Add(f"layers.{index % 16 * layers // 16}.layer_output", drawn[index % 16], factor=0.1)]
            for index in range(count)
        ]
        everywhere = [[Add(EVERY, drawn[index], factor=0.1)] for index in range(count)]
        cases: dict[str, Case] = {"plain": generate(plain, ids, DECODE)}
        if ours is not None:
            cases |= {
                "armed, nothing asked": generate(ours.vllm_entrypoint, ids, DECODE),
                "run, nothing asked": run(ours, ids),
                "a vector each": run(ours, ids, edits=one_each),
                "16 pairs of block and vector": run(ours, ids, edits=pairs),
                "a vector each, at every block": run(ours, ids, edits=everywhere),
                "one stream read, every new token": run(ours, ids, reads=[Read(stream, "last")]),
            }
        if directed is not None:
            along = [[ProjectOut(EVERY, drawn[index])] for index in range(count)]
            cases |= {
                "with directions: armed": generate(directed.vllm_entrypoint, ids, DECODE),
                "a direction each removed": run(directed, ids, edits=along),
            }
        if tapped is not None:
            cases |= {
                "tapped, nothing asked": generate(tapped.vllm_entrypoint, ids, DECODE),
                "traces, a vector each": lambda ids=ids: traced(tapped, ids, middle, drawn[0]),
                "traces, one stream read": lambda ids=ids: traced(tapped, ids, middle, None),
            }
        report(f"{count} prompts, {NEW} new tokens", measure(cases, arguments.rounds), NEW)
    single = prompts(1)
    once = {**DECODE, "max_tokens": 1}
    cases = {"plain": generate(plain, single, once)}
    if ours is not None:
        cases |= {
            "armed, nothing asked": generate(ours.vllm_entrypoint, single, once),
            "run, nothing asked": run(ours, single, new=1),
            "run, last position": run(ours, single, new=1, reads=[Read(stream, "last")]),
            "run, all positions": run(ours, single, new=1, reads=[Read(stream, "all")]),
            "collect, last position": lambda: ours.collect(single, {stream: "last"}),
        }
    report("one prompt, one new token", measure(cases, arguments.rounds * 4), 1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
