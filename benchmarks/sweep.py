"""SmolLM2-135M, real weights: a patching sweep as one call, and as a loop over its patches.

    python benchmarks/sweep.py [--repeats 3] [--every 13]

Each patch puts the clean prompt's residual stream at one block and position into the corrupted
prompt, both of 12 tokens, and reads the last position's logits: 30 blocks by 12 positions. One call
of `run` on either engine, against loops of a forward with a hook, or of a trace, for each patch.
Loops of traces are timed on every thirteenth patch, and their figures are scaled to all. The clean
stream is read within the time, and all ways come to the same logits. Interleaved; medians on the
clock.

The machine must be otherwise idle: one busy core makes every thread of the engine wait.
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

import nnsight
import torch
from torch import Tensor

from nnterp import Read, Replace

CLEAN = "When Mary and John went out, John gave a book to"
CORRUPTED = "When Mary and John went out, Mary gave a book to"
TOKENS = 12
ENGINE = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 1_000_000_000}

#: How far the ways' logits may be apart, of the largest.
CLOSE = 2e-4

#: A block and a position.
Patch = tuple[int, int]

#: Returns the last position's logits under each patch, ``[patches, vocab]``.
Way = Callable[[list[Patch]], Tensor]


def by_hooks(model: torch.nn.Module, clean: list[int], corrupted: list[int]) -> Way:
    """A forward of transformers for each patch, with a hook on its block."""
    blocks = model.model.layers

    def keep(streams: list[Tensor]) -> Callable[..., None]:
        return lambda block, arguments, output: streams.append(output[0])

    def put(row: Tensor, position: int) -> Callable[..., Tensor]:
        def hook(block: torch.nn.Module, arguments: Any, output: Tensor) -> Tensor:
            patched = output.clone()
            patched[0, position] = row
            return patched

        return hook

    @torch.no_grad()
    def sweep(patches: list[Patch]) -> Tensor:
        streams: list[Tensor] = []
        handles = [block.register_forward_hook(keep(streams)) for block in blocks]
        model(torch.tensor([clean]))
        for handle in handles:
            handle.remove()
        logits = []
        for index, position in patches:
            hook = put(streams[index][position], position)
            handle = blocks[index].register_forward_hook(hook)
            logits.append(model(torch.tensor([corrupted])).logits[0, -1])
            handle.remove()
        return torch.stack(logits)

    return sweep


def in_one_call(model: Any, clean: list[int], corrupted: list[int]) -> Way:
    """One `run`, of a prompt for each patch."""

    def sweep(patches: list[Patch]) -> Tensor:
        streams = model.run([clean], reads=[Read("layers.*.layer_output", "all")]).values
        edits = []
        for block, position in patches:
            name = f"layers.{block}.layer_output"
            edits.append([Replace(name, streams[name][0][position], positions=position)])
        prompts = [corrupted] * len(patches)
        found = model.run(prompts, reads=[Read("logits")], edits=edits, progress=False)
        return found["logits"]

    return sweep


def by_traces(model: Any, clean: list[int], corrupted: list[int], **settings: Any) -> Way:
    """A trace for each patch."""

    @torch.no_grad()
    def sweep(patches: list[Patch]) -> Tensor:
        with model.trace(clean, **settings):
            streams = nnsight.save([layer.layer_output.clone() for layer in model.layers])
        found = []
        for block, position in patches:
            row = streams[block][0, position]
            with model.trace(corrupted, **settings):
                model.layers[block].layer_output[0, position] = row
                logits = model.logits[0, -1].save()
            found.append(logits)
        return torch.stack(found)

    return sweep


def require_same(ways: dict[str, Way], patches: list[Patch]) -> None:
    """Hold every way's logits against the first's."""
    first, *others = ways
    expected = ways[first](patches)
    for name in others:
        apart = ((ways[name](patches) - expected).abs().max() / expected.abs().max()).item()
        assert apart < CLOSE, f"{name}: {apart:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=13, help="which patches loops of traces make")
    arguments = parser.parse_args()

    from transformers import AutoModelForCausalLM

    from nnterp import StandardizedTransformer, StandardizedVLLM
    from nnterp.engines import gguf

    path = str(gguf.smollm2())
    vllm = StandardizedVLLM(path, dispatch=True, **ENGINE)
    transformer = StandardizedTransformer(path, dispatch=True, dtype=torch.float32)
    native = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    prompts = [transformer.tokenizer(text).input_ids for text in (CLEAN, CORRUPTED)]
    assert [len(prompt) for prompt in prompts] == [TOKENS, TOKENS]

    loop = "a loop of forwards with a hook"
    ways = {
        loop: by_hooks(native, *prompts),
        "one call on transformers": in_one_call(transformer, *prompts),
        "one call on vLLM": in_one_call(vllm, *prompts),
    }
    traces = {
        "a loop of traces on transformers": by_traces(transformer, *prompts),
        "a loop of traces on vLLM": by_traces(vllm, *prompts, temperature=0.0, max_tokens=1),
    }
    every = [(block, at) for block in range(transformer.num_layers) for at in range(TOKENS)]
    some = every[:: arguments.every]
    require_same(ways, every)
    require_same({loop: ways[loop], **traces}, some)

    took: dict[str, list[float]] = {name: [] for name in (*ways, *traces)}
    for round_ in range(arguments.repeats):
        for name in random.Random(round_).sample(list(took), len(took)):
            patches = some if name in traces else every
            start = time.perf_counter()
            (ways | traces)[name](patches)
            took[name].append((time.perf_counter() - start) * len(every) / len(patches))
    print(f"{len(every)} patches; of each loop of traces {len(some)}, and their time scaled\n")
    print("| way | median | a patch | times as fast as the loop of hooks |\n|---|---|---|---|")
    for name, seconds in took.items():
        middle = statistics.median(seconds)
        pairs = zip(seconds, took[loop], strict=True)
        ratio = statistics.median(other / own for own, other in pairs)
        print(f"| {name} | {middle:.2f} s | {1000 * middle / len(every):.1f} ms | {ratio:.2f}x |")


if __name__ == "__main__":
    main()
