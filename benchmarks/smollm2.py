"""SmolLM2-135M, real weights: what looking costs over vLLM alone, and against transformers.

    python benchmarks/smollm2.py [--repeats 5]

First 64 prompts of 16 to 100 tokens, all positions of one layer and of every layer, against
vLLM's own `LLM`. Then 256 prompts of 16 to 200 tokens, one layer, all positions (a minute a
case on two cores), against transformers: its forward in length-sorted batches with a forward
hook, with `output_hidden_states`, and this package's `collect` on it. Interleaved; medians on
the clock.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch

MIDDLE = 15
STREAM = f"layers.{MIDDLE}.layer_output"
ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "kv_cache_memory_bytes": 2_000_000_000,
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
}
#: Tokens of a transformers forward, padding and all; the same for each way of using it.
FORWARD = 4096


def prompts(count: int, longest: int) -> list[list[int]]:
    draw = random.Random(count)
    return [
        [draw.randrange(100, 40_000) for _ in range(draw.randint(16, longest))]
        for _ in range(count)
    ]


def batches(ids: list[list[int]]) -> list[dict[str, torch.Tensor]]:
    """Length-sorted, padded on the right."""
    order = sorted(ids, key=len, reverse=True)
    found = []
    while order:
        count = max(1, FORWARD // len(order[0]))
        batch, order = order[:count], order[count:]
        tokens = torch.zeros(len(batch), len(batch[0]), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(batch):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
            mask[row, : len(prompt)] = 1
        found.append({"input_ids": tokens, "attention_mask": mask})
    return found


def with_hook(model: torch.nn.Module, ids: list[list[int]]) -> int:
    kept: list[torch.Tensor] = []
    layer = model.model.layers[MIDDLE]
    handle = layer.register_forward_hook(
        lambda module, arguments, output: kept.append(
            output[0] if isinstance(output, tuple) else output
        )
    )
    rows = 0
    with torch.inference_mode():
        for batch in batches(ids):
            model(**batch, use_cache=False, logits_to_keep=1)
            rows += len(kept.pop()[batch["attention_mask"].bool()])
    handle.remove()
    return rows


def with_hidden_states(model: torch.nn.Module, ids: list[list[int]]) -> int:
    rows = 0
    with torch.inference_mode():
        for batch in batches(ids):
            states = model(
                **batch, use_cache=False, logits_to_keep=1, output_hidden_states=True
            ).hidden_states
            rows += len(states[MIDDLE + 1][batch["attention_mask"].bool()])
    return rows


def interleaved(
    runs: dict[str, Callable[[list[list[int]]], Any]], ids: list[list[int]], repeats: int
) -> dict[str, list[float]]:
    """Seconds of each run over ``ids``, in rounds of an order of their own."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(ids[:8])
    for round_ in range(repeats):
        for name in random.Random(round_).sample(list(runs), len(runs)):
            start = time.perf_counter()
            runs[name](ids)
            took[name].append(time.perf_counter() - start)
    return took


def report(took: dict[str, list[float]]) -> None:
    base = next(iter(took))
    print(f"| case | median | against {base} |\n|---|---|---|")
    for name, seconds in took.items():
        pairs = zip(seconds, took[base], strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        print(f"| {name} | {statistics.median(seconds):.2f} s | {ratio:.3f}x |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=256, help="of the second table")
    parser.add_argument("--tables", nargs="*", default=["vllm", "transformers"])
    arguments = parser.parse_args()

    from transformers import AutoModelForCausalLM
    from vllm import LLM, SamplingParams

    from nnterp import StandardizedTransformer, StandardizedVLLM
    from nnterp.engines import gguf

    path = str(gguf.smollm2())
    model = StandardizedVLLM(path, dispatch=True, **ENGINE)

    def generate(engine: Any, ids: list[list[int]]) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=1)
        tokens = [{"prompt_token_ids": prompt} for prompt in ids]
        outputs = engine.generate(tokens, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def collect(model: Any, ids: list[list[int]], name: str) -> None:
        model.collect(ids, {name: "all"}, progress=False)

    def trace_one(ids: list[list[int]]) -> None:
        with model.trace(temperature=0.0, max_tokens=1) as tracer:
            for prompt in ids:
                with tracer.invoke(prompt):
                    stream = model.layers[MIDDLE].layer_output.save()
        assert len(stream) == len(ids)

    if "vllm" in arguments.tables:
        plain = LLM(path, enforce_eager=True, **ENGINE)
        ids = prompts(64, 100)
        assert generate(plain, ids) == generate(model.vllm_entrypoint, ids), (
            "other tokens when idle"
        )
        report(
            interleaved(
                {
                    "plain vLLM": lambda ids: generate(plain, ids),
                    "idle engine": lambda ids: generate(model.vllm_entrypoint, ids),
                    "collect one layer": lambda ids: collect(model, ids, STREAM),
                    "collect every layer": lambda ids: collect(model, ids, "layers.*.layer_output"),
                    "trace, one layer saved": trace_one,
                },
                ids,
                arguments.repeats,
            )
        )
    if "transformers" not in arguments.tables:
        return
    many = prompts(arguments.prompts, 200)
    transformer = StandardizedTransformer(path, dispatch=True, dtype=torch.float32)
    native = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    few = many[:8]
    assert with_hook(native, few) == with_hidden_states(native, few) == sum(map(len, few))
    report(
        interleaved(
            {
                "transformers, a forward hook": lambda ids: with_hook(native, ids),
                "transformers, output_hidden_states": lambda ids: with_hidden_states(native, ids),
                "collect on transformers": lambda ids: collect(transformer, ids, STREAM),
                "collect on vLLM": lambda ids: collect(model, ids, STREAM),
            },
            many,
            arguments.repeats,
        )
    )


if __name__ == "__main__":
    main()
