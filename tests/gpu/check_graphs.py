"""Values under CUDA graphs: taps against an engine that runs eagerly.

    python tests/gpu/check_graphs.py [--device cuda]

Prompts of several lengths together and twelve new tokens, so that graphs of several shapes are
replayed, mixed and decoding. Every tapped value of every step must be what the eager engine
serves, stay what it was read as, and take edits; steps nobody looks at must draw the
same tokens. Exits with the number of failures. Each engine is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import nnsight
import torch

import checkpoints

NAMES = ("llama", "gemma2", "gpt2", "gpt_neox", "qwen3")
PROMPTS = [checkpoints.PROMPT[:6], checkpoints.PROMPT, checkpoints.PROMPT[5:16]]
STEPS = 12
SETTINGS = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
TAPS = [
    "layers.*.layer_input",
    "layers.*.layer_output",
    "layers.1.self_attn.attention_output",
    "layers.1.self_attn.attention_head_outputs",
    "layers.1.mlp.mlp_output",
]
COLLECTED = {"layers.*.layer_output": "all", "layers.1.mlp.mlp_output": "mean", "logits": "last"}
#: Of a value's largest magnitude; the two engines add up in another order.
CLOSE = 2e-5


def read_everything(model: Any) -> list[list[list[torch.Tensor]]]:
    with model.trace(**SETTINGS) as tracer:
        found = nnsight.save([None] * len(PROMPTS))
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                steps = []
                for _ in tracer.iter[:STEPS]:
                    first, second = model.layers[0], model.layers[1]
                    steps.append(
                        [
                            first.layer_input,
                            first.layer_output,
                            second.self_attn.attention_head_outputs,
                            second.self_attn.attention_output,
                            second.mlp.mlp_output,
                            second.layer_output,
                            model.logits,
                        ]
                    )
                found[index] = steps
    return found


def edit_each_step(model: Any) -> list[list[torch.Tensor]]:
    with model.trace(**SETTINGS) as tracer:
        found = nnsight.save([None] * len(PROMPTS))
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                logits = []
                for _ in tracer.iter[:STEPS]:
                    if index == 1:
                        model.layers[0].layer_output[:] *= 1.5
                        model.layers[1].self_attn.attention_head_outputs[:, :, 0] = 0
                        model.layers[1].mlp.mlp_output *= 0.5
                    logits.append(model.logits)
                found[index] = logits
    return found


def tokens(model: Any) -> list[list[int]]:
    from vllm import SamplingParams

    ids = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = model.vllm_entrypoint.generate(ids, SamplingParams(**SETTINGS), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def run(path: str, found: str, tapped: bool) -> None:
    """Everything on one engine, written to ``found``."""
    from nnterp import StandardizedVLLM

    model = StandardizedVLLM(
        path,
        dispatch=True,
        dtype="float32",
        max_model_len=64,
        kv_cache_memory_bytes=200_000_000,
        taps=TAPS if tapped else (),
    )
    before = tokens(model)
    read, edited = read_everything(model), edit_each_step(model)
    collected = {
        name: getattr(v, "rows", v) for name, v in model.collect(PROMPTS, COLLECTED).items()
    }
    untapped = None
    if tapped:
        with_taps = model.support()
        assert not with_taps["attention_queries"].available
        untapped = with_taps["attention_queries"].reasons
    results = {
        "tokens": [before, tokens(model)],
        "read": read,
        "edited": edited,
        "collected": collected,
        "untapped": untapped,
    }
    torch.save(results, found)


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.cpu()]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for part in value for leaf in leaves(part)]


def compare(name: str, eager: dict[str, Any], graphs: dict[str, Any]) -> int:
    """The number of things that differ on one family."""
    failures = 0
    for what in ("read", "edited", "collected"):
        expected, found = leaves(eager[what]), leaves(graphs[what])
        gaps = [
            ((b - a).abs().max() / a.abs().max()).item() if a.shape == b.shape else float("inf")
            for a, b in zip(expected, found, strict=True)
        ]
        failures += not max(gaps) < CLOSE
        print(f"{name}: {what}: {len(gaps)} tensors, worst {max(gaps):.1e}", flush=True)
    effect = (leaves(graphs["edited"])[STEPS] - leaves(graphs["read"])[7 * STEPS + 6]).abs().max()
    same = eager["tokens"] == graphs["tokens"] and graphs["tokens"][0] == graphs["tokens"][1]
    failures += (not same) + (not effect > 1e-2)
    print(f"{name}: tokens {'the same' if same else 'DIFFER'}, edit moves logits {effect:.2f}")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        path, found, tapped = arguments.run
        run(path, found, tapped == "graphs")
        return
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            path = checkpoints.make(name, Path(folder))
            outcomes = {}
            for kind in ("eager", "graphs"):
                found = f"{folder}/{name}.{kind}.pt"
                as_asked = kind if arguments.device == "cuda" else "eager"
                command = [sys.executable, __file__, "--run", str(path), found, as_asked]
                done = subprocess.run(command, timeout=240, capture_output=True, text=True)
                if done.returncode:
                    print(done.stderr[-3000:])
                    break
                outcomes[kind] = torch.load(found)
            if len(outcomes) == 2:
                failures += compare(name, outcomes["eager"], outcomes["graphs"])
            else:
                failures += 1
                print(f"{name}: FAILED to run")
    print(f"{failures} failures")
    sys.exit(min(failures, 100))


if __name__ == "__main__":
    main()
