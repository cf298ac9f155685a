"""What is no request's own affair stays as it is, on a GPU.

    python tests/gpu/check_left_alone.py [--device cuda] [--stages cache rows collected adapters]

``cache``: requests beside and after one whose values are not numbers, in blocks of a cache so
small that they are used again at once, on each attention backend. ``rows``: in bfloat16 and
float32, what an edit leaves alone stays to the bit. ``collected``: values of which more is kept
than stays on the GPU, against the same values kept one at a time. ``adapters``: requests with
LoRA adapters of their own in one batch, against transformers with each merged into its weights.
Exits with the number of failures. Each stage, and each engine of one, is a process of its own;
they run side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TQDM_DISABLE", "1")

import nnsight
import torch

import checkpoints
import loras
from nnterp import KnownWrongWarning
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from tiny import TINY

STAGE_LIMIT = 300

#: Attention backends, and the types that each takes.
BACKENDS = {
    "": ("float32", "bfloat16"),
    "TRITON_ATTN": ("bfloat16",),
    "FLEX_ATTENTION": ("float32",),
}

#: Addends of the stream, sandwiched and not; one tensor; multipliers, biases apart, experts.
ROWS = ("llama", "gemma2", "gpt2", "gpt_neox", "granite", "falcon", "mixtral", "cohere")

#: Of the model whose values are collected: wide, so that they are many.
WIDE = {
    "hidden_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
}
COUNT, LENGTH = 64, 512

#: How near requests with adapters are to transformers in float32; where rounding makes more of
#: weights this random, they are four times as near as to transformers with the other adapter.
CLOSE = {"float32": 1e-4, "bfloat16": 2e-2}

#: What the adapters are of.
ADAPTED = ("q_proj", "v_proj", "o_proj")


def engine(path: Path, **arguments: Any) -> Any:
    from nnterp import StandardizedVLLM

    common = {"dispatch": True, "max_model_len": 64, "gpu_memory_utilization": 0.3}
    return StandardizedVLLM(str(path), **{**common, **arguments})


def cache(folder: Path, backend: str, dtype: str) -> list[str]:
    """What goes wrong beside and after a request that is not finite, unless it was warned of."""
    path = checkpoints.make("llama", folder)
    arguments = {"attention_backend": backend} if backend else {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = engine(path, dtype=dtype, num_gpu_blocks_override=12, block_size=16, **arguments)
    found = [one for _ in range(3) for one in readings.disturbed(model, checkpoints.PROMPT)]
    warned = any(issubclass(one.category, KnownWrongWarning) for one in said)
    if warned and found:
        print(f"    as warned of: {', '.join(sorted(set(found)))}")
        return []
    return found or ["what was warned of is not met"] * warned


def rows(folder: Path, name: str, dtype: str) -> list[str]:
    """What moves that an edit leaves alone."""
    path = checkpoints.make(name, folder)
    arguments = {"dtype": dtype, "kv_cache_memory_bytes": 200_000_000, **TINY[name].engine}
    moved = readings.moved(engine(path, **arguments), checkpoints.PROMPT)
    return [f"{key} by {size:.1e}" for key, size in moved.items()]


def collected(folder: Path, device: str) -> list[str]:
    """What is kept otherwise of many values at once than of each alone."""
    path = checkpoints.make("llama", folder)
    for weights in path.glob("*.safetensors"):
        weights.unlink()
    config = json.loads((path / "config.json").read_text())
    wide = WIDE if device == "cuda" else {"max_position_embeddings": 2048, "dtype": "bfloat16"}
    (path / "config.json").write_text(json.dumps({**config, **wide}))
    model = engine(
        path, dtype="bfloat16", load_format="dummy", max_model_len=1024, max_num_seqs=COUNT
    )
    draw = Random(0)
    prompts = [[draw.randrange(3, 256) for _ in range(LENGTH)] for _ in range(COUNT)]
    wanted = {"layers.*.mlp.mlp_output": "all", "layers.*.self_attn.attention_output": "all"}
    together = model.collect(prompts, wanted)
    wrong = []
    for name, found in together.items():
        alone = model.collect(prompts, {name: "all"})[name]
        bad = [i for i in range(COUNT) if not torch.equal(found[i], alone[i])]
        if bad:
            wrong.append(f"{name} of {len(bad)} prompts")
    print(f"collected {sum(len(found) for found in together.values())} tensors", flush=True)
    return wrong


def adapters(folder: Path, name: str, dtype: str) -> list[str]:
    """What requests with adapters of their own are served otherwise than with one alone."""
    from vllm.lora.request import LoRARequest

    from nnterp import StandardizedTransformer

    path = checkpoints.make(name, folder)
    written = [loras.write(path, folder / str(seed), seed, ADAPTED) for seed in (1, 2)]
    loaded = [LoRARequest(str(n), n, str(adapter)) for n, adapter in enumerate(written, 1)]
    arguments = {"dtype": dtype, "kv_cache_memory_bytes": 200_000_000}
    model = engine(path, enable_lora=True, max_loras=2, max_lora_rank=8, **arguments)
    places = readings.served(model)
    prompts = [checkpoints.PROMPT[start:] for start in range(6)]
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        found = nnsight.save([None] * len(prompts))
        for row, prompt in enumerate(prompts):
            with tracer.invoke(prompt, lora_request=loaded[row % 2]):
                seen = {}
                for index, value in places:
                    seen[f"{index}.{value.name}"] = getattr(model.host_of(value, index), value.name)
                projected = model.project_on_vocab(seen[f"{model.num_layers - 1}.layer_output"])
                seen["logits"] = model.logits
                found[row] = seen, projected
    wrong = [
        f"{row}: projected by {size:.1e} of the logits"
        for row, (seen, projected) in enumerate(found)
        if not (size := relative_error(projected[:, -1].cpu(), seen["logits"][:, -1].cpu()))
        < CLOSE[dtype]
    ]
    if hasattr(model._config, "num_local_experts"):
        # In 16 bits the two engines' roundings may choose other experts.
        return wrong
    references = []
    for adapter in written:
        reference = StandardizedTransformer(
            str(path), dispatch=True, dtype=torch.float32, attn_implementation="eager"
        )
        loras.merge(reference._module, adapter)
        references.append(reference)
    for row, (seen, projected) in enumerate(found):
        mine, others = (_expected(references[(row + other) % 2], prompts[row]) for other in (0, 1))
        for key, own in {**seen, "projected": projected}.items():
            size, to_the_other = (relative_error(own.cpu(), held[key]) for held in (mine, others))
            if not size < max(CLOSE[dtype], to_the_other / 4):
                wrong.append(f"{row}: {key} by {size:.1e}")
    return wrong


def _expected(reference: Any, prompt: list[int]) -> dict[str, torch.Tensor]:
    """What transformers makes of a prompt, and the logits of all positions."""
    with torch.no_grad():
        every = reference._module(torch.tensor([prompt], device=reference.device)).logits
    found = {**readings.values(reference, prompt), "projected": every}
    return {key: tensor.cpu() for key, tensor in found.items()}


STAGES = {"cache": cache, "rows": rows, "adapters": adapters}


def jobs(stages: list[str], device: str) -> list[tuple[str, ...]]:
    """The engines to start, each by its stage's name and what that takes."""
    every: list[tuple[str, ...]] = [("collected",)]
    every += [("cache", backend, dtype) for backend, own in BACKENDS.items() for dtype in own]
    every += [("rows", name, dtype) for name in ROWS for dtype in ("bfloat16", "float32")]
    # vLLM's kernels for adapters take 16 bits alone on a GPU, and mixtures on a GPU alone.
    adapted = ("llama", "gemma2", "mixtral")[: 3 if device == "cuda" else 2]
    dtype = {"cuda": "bfloat16", "cpu": "float32"}[device]
    every += [("adapters", name, dtype) for name in adapted]
    return [job for job in every if job[0] in stages]


def run(job: tuple[str, ...], device: str) -> int:
    """Run a job in a process of its own, and print what it prints; the number of failures."""
    command = [sys.executable, __file__, "--device", device, "--job", json.dumps(job)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STAGE_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{' '.join(job)}: FAILED, no end within {STAGE_LIMIT} s", flush=True)
        return 1
    told = [line for line in done.stdout.splitlines() if line.startswith(("    ", "collected "))]
    if done.returncode < 0 or (done.returncode and not told):
        told = [f"    {line}" for line in done.stderr.strip().splitlines()[-12:]]
    verdict = f"{done.returncode} FAILED" if done.returncode else "ok"
    print("\n".join([f"{' '.join(filter(None, job))}: {verdict}", *told]), flush=True)
    return abs(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--stages", nargs="*", default=[*STAGES, "collected"])
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.job:
        with ThreadPoolExecutor(arguments.at_once) as pool:
            every = jobs(arguments.stages, arguments.device)
            failed = sum(pool.map(run, every, [arguments.device] * len(every)))
        print(f"{failed} failures")
        sys.exit(min(failed, 99))
    stage, *given = arguments.job
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if stage == "collected":
            wrong = collected(folder, arguments.device)
        else:
            wrong = STAGES[stage](folder, *given)
    for text in wrong[:8]:
        print(f"    {text}", flush=True)
    sys.stdout.flush()
    # Without what vLLM has to say as it goes.
    os._exit(min(len(wrong), 99))


if __name__ == "__main__":
    main()
