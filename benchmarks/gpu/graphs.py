"""What looking costs on CUDA graphs: an 8B-shaped llama in bfloat16, random weights.

    python benchmarks/gpu/graphs.py [--rounds 9] [--size small --device cpu]

Prompts of 512 tokens. Plain is vLLM's own `LLM` with its CUDA graphs; beside it an engine with
every block's stream among its taps, and one with one block's. Every round runs every case
once, in turn; a figure is the median of a case, a ratio the median of the rounds' ratios. Each
engine is in a process of its own, since how vLLM makes graphs is a process's choice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import nnsight
import torch

import checkpoints

SIZES = {
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    },
    "small": {},
}
LENGTH = 512
NEW = 128
DECODE = {"temperature": 0.0, "max_tokens": NEW, "ignore_eos": True, "detokenize": False}
PREFILL = {"temperature": 0.0, "max_tokens": 1, "detokenize": False}
ENGINE = {
    "load_format": "dummy",
    "max_model_len": 1024,
    "max_num_batched_tokens": 64 * LENGTH,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "gpu_memory_utilization": 0.3,
    "seed": 0,
}

Case = Callable[[], Any]


def make(size: str, folder: Path) -> str:
    """A folder with a llama's config in ``size`` and a small tokenizer, and no weights."""
    path = checkpoints.make("llama", folder)
    for weights in path.glob("*.safetensors"):
        weights.unlink()
    config = json.loads((path / "config.json").read_text())
    grown = {**config, **SIZES[size], "max_position_embeddings": 2048, "dtype": "bfloat16"}
    (path / "config.json").write_text(json.dumps(grown))
    return str(path)


def prompts(count: int) -> list[list[int]]:
    draw = Random(count)
    return [[draw.randrange(3, 256) for _ in range(LENGTH)] for _ in range(count)]


def generate(engine: Any, ids: list[list[int]], settings: dict[str, Any]) -> Case:
    from vllm import SamplingParams

    tokens = [{"prompt_token_ids": prompt} for prompt in ids]
    return lambda: engine.generate(tokens, SamplingParams(**settings), use_tqdm=False)


def read_last(model: Any, ids: list[list[int]], layer: int) -> None:
    with model.trace(**PREFILL) as tracer:
        for prompt in ids:
            with tracer.invoke(prompt):
                stream = model.layers[layer].layer_output[:, -1].save()
    assert stream is not None


def read_all(model: Any, ids: list[list[int]], layer: int) -> None:
    with model.trace(**PREFILL) as tracer:
        for prompt in ids:
            with tracer.invoke(prompt):
                stream = model.layers[layer].layer_output.save()
    assert stream is not None


def every_stream(model: Any, ids: list[list[int]]) -> None:
    with model.trace(ids[0], **PREFILL):
        streams = nnsight.save([])
        for layer in model.layers:
            streams.append(layer.layer_output)
    assert len(streams) == model.num_layers


def hooks_to_pinned(path: str, device: str) -> Case:
    """transformers with forward hooks: every block's stream of one prompt, in pinned memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(path), dtype=torch.bfloat16
        ).eval()
    tokens = torch.tensor(prompts(1), device=device)
    width = model.config.hidden_size
    count = model.config.num_hidden_layers
    pinned = torch.empty(count, LENGTH, width, dtype=torch.bfloat16, pin_memory=device == "cuda")

    def hook(index: int) -> Callable[..., None]:
        def keep(module: Any, arguments: Any, output: Any) -> None:
            stream = output[0] if isinstance(output, tuple) else output
            pinned[index].copy_(stream.reshape(LENGTH, width), non_blocking=True)

        return keep

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(hook(index))

    def run() -> None:
        with torch.inference_mode():
            model(tokens, use_cache=False, logits_to_keep=1)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def measure(cases: dict[str, Case], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round."""
    took: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 2):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if round_ >= 2:
                took[name].append(time.perf_counter() - start)
    return took


def report(title: str, took: dict[str, list[float]]) -> None:
    plain = took["plain"]
    print(f"\n{title}\n| case | median | against plain |\n|---|---|---|", flush=True)
    for name, seconds in took.items():
        ratio = statistics.median(own / base for own, base in zip(seconds, plain, strict=True))
        more = statistics.median(own - base for own, base in zip(seconds, plain, strict=True))
        print(
            f"| {name} | {statistics.median(seconds) * 1e3:.1f} ms | {ratio:.3f}x, "
            f"speed {1 / ratio:.3f}, {more * 1e3:+.2f} ms |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tables", nargs="*", default=["decode", "one", "many"])
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"

    from vllm import LLM

    from nnterp import StandardizedVLLM

    folder = Path(tempfile.mkdtemp())
    path = make(arguments.size, folder)
    layers = json.loads((Path(path) / "config.json").read_text())["num_hidden_layers"]
    middle = layers // 2
    memory = 12 << 30 if on_gpu else 400_000_000
    engine = {**ENGINE, "kv_cache_memory_bytes": memory}
    if not on_gpu:
        engine |= {"max_num_batched_tokens": 8192}

    def start(name: str, build: Case) -> Any:
        began = time.perf_counter()
        made = build()
        print(f"{name}: ready in {time.perf_counter() - began:.0f} s", flush=True)
        return made

    def tapped(*taps: str) -> Any:
        return StandardizedVLLM(path, dispatch=True, taps=taps if on_gpu else (), **engine)

    # First, for the others have vLLM break its graphs.
    plain = start("plain", lambda: LLM(path, enforce_eager=not on_gpu, **engine))
    every = start("every stream tapped", lambda: tapped("layers.*.layer_output"))
    one = start("one stream tapped", lambda: tapped(f"layers.{middle}.layer_output"))

    for count in (1, 8) if "decode" in arguments.tables else ():
        ids = prompts(count)
        cases = {
            "plain": generate(plain, ids, DECODE),
            "every stream tapped, nothing read": generate(every.vllm_entrypoint, ids, DECODE),
            "one stream tapped, nothing read": generate(one.vllm_entrypoint, ids, DECODE),
        }
        report(f"{count} prompts, {NEW} new tokens", measure(cases, arguments.rounds))
    single, many = prompts(1), prompts(64)
    stream = f"layers.{middle}.layer_output"
    cases = {
        "plain": generate(plain, single, PREFILL),
        "tapped, nothing read": generate(one.vllm_entrypoint, single, PREFILL),
        "trace, last position": lambda: read_last(one, single, middle),
        "trace, all positions": lambda: read_all(one, single, middle),
        "collect, last position": lambda: one.collect(single, {stream: "last"}),
        "collect, all positions": lambda: one.collect(single, {stream: "all"}),
        "every stream, trace": lambda: every_stream(every, single),
        "every stream, collect": lambda: every.collect(single, {"layers.*.layer_output": "all"}),
    }
    if "one" in arguments.tables:
        cases["every stream, transformers hooks"] = hooks_to_pinned(path, arguments.device)
        report("one prompt, one new token, one stream read", measure(cases, arguments.rounds * 2))
    cases = {
        "plain": generate(plain, many, PREFILL),
        "tapped, nothing read": generate(one.vllm_entrypoint, many, PREFILL),
        "trace, all positions": lambda: read_all(one, many, middle),
        "trace, last position": lambda: read_last(one, many, middle),
        "collect, all positions": lambda: one.collect(many, {stream: "all"}, progress=False),
        "collect, last position": lambda: one.collect(many, {stream: "last"}, progress=False),
    }
    if "many" in arguments.tables:
        report("64 prompts, one new token, one stream read", measure(cases, arguments.rounds))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
