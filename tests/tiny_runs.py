"""Every tiny checkpoint on both engines, each in a process of its own.

    python tests/tiny_runs.py FOLDER [--names NAME ...] [--engines transformers vllm] [--report]
    python tests/tiny_runs.py FOLDER --table

A process that has imported both engines forks one for each checkpoint, which takes seconds
where an interpreter of its own would take half a minute, and with which an engine's memory
ends. Writes ``FOLDER/NAME.pt``: a `Run`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Read as torch and vLLM are imported. Two run at a time, on a core each.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")

import torch

import checkpoints
import collects
import inplace_norms
from nnterp.checking import readings, table
from nnterp.checking.findings import Findings, examine
from nnterp.checking.verdict import Line, between, on_its_own
from nnterp.compare import gap
from nnterp.families import module_name
from nnterp.known_wrong import KnownWrongWarning
from nnterp.routing import DENSE, IN_KERNEL
from tiny import ROWS, TINY

#: What an engine for a tiny checkpoint needs, and no more.
ENGINE = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 50_000_000}


@dataclass
class Run:
    """What became of one checkpoint.

    Attributes:
        found: The findings of each engine.
        collected: What each engine's `collect` kept.
        own: transformers' own hidden states and attentions, by the key of the value that each is.
        warned: What loading it was warned of.
        unsteady: What a model no longer computed to the bit once both engines had run.
        error: The traceback of what went wrong, if anything.
    """

    found: dict[str, Findings] = field(default_factory=dict)
    collected: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    error: str = ""


def load(name: str, path: Path, engine: str) -> Any:
    if engine == "vllm":
        from nnterp import StandardizedVLLM

        return StandardizedVLLM(str(path), dispatch=True, **{**ENGINE, **ROWS[name].engine})
    from nnterp import StandardizedTransformer

    return StandardizedTransformer(
        str(path),
        dispatch=True,
        device="cpu",
        dtype=torch.float32,
        attn_implementation=ROWS[name].attention,
    )


def run(name: str, folder: Path, engines: Sequence[str]) -> Run:
    """Examine the checkpoint ``name`` on ``engines``, in their order, and then read both again."""
    done = Run()
    models: dict[str, Any] = {}
    try:
        path = checkpoints.make(name, folder)
        for engine in engines:
            if engine == "vllm" and ROWS[name].not_on_vllm:
                continue
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = models[engine] = load(name, path, engine)
            told = [str(w.message) for w in said if w.category is KnownWrongWarning]
            done.warned += told
            done.found[engine] = examine(model, checkpoints.PROMPT)
            if engine == "transformers":
                done.own = own_outputs(name, model)
            kept = model.collect(collects.PROMPTS, collects.wanted(model))
            done.collected[engine] = collects.flat(kept)
        for engine, model in models.items() if len(models) > 1 else ():
            before = done.found[engine].values
            for key, tensor in readings.values(model, checkpoints.PROMPT).items():
                if not torch.equal(tensor, before[key]):
                    done.unsteady.append(f"{engine} {key}")
    except Exception:
        done.error = traceback.format_exc()
    return done


def own_outputs(name: str, model: Any) -> dict[str, torch.Tensor]:
    """What transformers itself returns of a forward, beside all of nnterp."""
    ids = torch.tensor([checkpoints.PROMPT])
    with torch.no_grad():
        # Asked for a pattern, an attention that has none may take another way.
        pattern = model._module.config._attn_implementation == "eager"
        own = model._module(ids, output_hidden_states=True, output_attentions=pattern)
    found = {"logits": own.logits[:, -1:]}
    stream = ROWS[name].hidden_states
    if not stream:
        return found
    for index in range(model.num_layers):
        found[f"{index}.{stream}"] = own.hidden_states[index]
    patterns = own.get("attentions") or ()
    attending = model.support()["attention_probabilities"].blocks
    # One a block, or one for each that attends.
    blocks = attending if len(patterns) == len(attending) else range(model.num_layers)
    for index, own_pattern in zip(blocks, patterns, strict=False):
        found[f"{index}.attention_probabilities"] = own_pattern
    return {key: tensor for key, tensor in found.items() if tensor is not None}


def limit(name: str, line: Line) -> tuple[float, str]:
    """How far ``line`` of the checkpoint ``name`` may be off, and the cause if not by rounding."""
    limits = ROWS[name].limits
    value = line.key.rpartition(".")[2]
    for key in (f"{line.kind}.{value}", line.kind, value):
        if key in limits:
            return limits[key]
    return line.limit, ""


def lines(done: Run) -> list[Line]:
    """Everything that a run is held against."""
    held = [line for own in done.found.values() for line in on_its_own(own)]
    if done.own:
        served = done.found["transformers"].values
        for key in done.own.keys() & served.keys():
            size = gap(served[key], done.own[key])
            held.append(Line("own", key, size, 0.0, size == 0.0))
    if len(done.found) == 2:
        held += between(done.found["vllm"], done.found["transformers"])
    return held


def failures(name: str, done: Run) -> list[str]:
    """What is not as it must be, in words."""
    failed = [done.error] if done.error else []
    for line in lines(done):
        if not line.passed and not line.size < limit(name, line)[0]:
            failed.append(f"{line.kind} {line.key}: {line.note or f'{line.size:.1e}'}")
    return failed


def table_of(runs: Mapping[str, Run]) -> str:
    """The table of families, as these runs make it."""
    rows = []
    for name, done in sorted(runs.items(), key=lambda item: (TINY[item[0]].model_type, item[0])):
        row = TINY[name]
        special = name.removeprefix(module_name(row.model_type)).strip("_").replace("_", " ")
        own, vllm = done.found["transformers"], done.found.get("vllm")
        limits = [f"{key} to {size:.0e} ({cause})" for key, (size, cause) in row.limits.items()]
        rows.append(
            table.Row(
                name=f"`{row.model_type}`" + (f" ({special})" if special else ""),
                transformers=own.architecture,
                vllm=f"{vllm.architecture}, {vllm.stream}" if vllm else row.not_on_vllm,
                missing=missing(done),
                verified="; ".join(["both engines" if vllm else "transformers", *limits]),
            )
        )
    return table.write(rows)


def missing(done: Run) -> str:
    """What the engines do not serve, said once for each reason."""
    told: dict[str, list[str]] = {}
    for engine, found in done.found.items():
        for key, reason in found.missing.items():
            value = key.rpartition(".")[2]
            # Said of all families at the head of the table.
            if reason in (DENSE, IN_KERNEL):
                continue
            names = told.setdefault(f"{engine}: {reason.splitlines()[0].rstrip(':')}", [])
            if value not in names:
                names.append(value)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in sorted(told.items()))


def write(name: str, folder: Path, engines: Sequence[str]) -> None:
    partial = folder / f"{name}.partial"
    torch.save(run(name, folder, engines), partial)
    partial.rename(folder / f"{name}.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=list(ROWS))
    parser.add_argument("--engines", nargs="*", default=["transformers", "vllm"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="write the table of families anew")
    parser.add_argument("--report", action="store_true", help="print what fails, and how far off")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    import vllm.entrypoints.llm  # imported here, once, for every child

    from nnterp import StandardizedTransformer, StandardizedVLLM

    assert all((vllm, StandardizedTransformer, StandardizedVLLM))
    if inplace_norms.imitated():
        inplace_norms.imitate()
    running: dict[int, str] = {}
    waiting = list(arguments.names)
    while waiting or running:
        while waiting and len(running) < arguments.workers:
            name = waiting.pop(0)
            child = os.fork()
            if not child:
                torch.set_num_threads(1)
                if not arguments.report:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                write(name, arguments.folder, arguments.engines)
                sys.stdout.flush()
                os._exit(0)
            running[child] = name
        child, status = os.wait()
        name = running.pop(child)
        file = arguments.folder / f"{name}.pt"
        if status or not file.exists():
            torch.save(Run(error=f"the process ended with status {status}"), file)
        if arguments.report:
            report(name, torch.load(file, weights_only=False))
    if arguments.table:
        files = {name: arguments.folder / f"{name}.pt" for name in TINY}
        runs = {name: torch.load(file, weights_only=False) for name, file in files.items()}
        table.FILE.write_text(table_of(runs))


def report(name: str, done: Run) -> None:
    failed = failures(name, done)
    worst: dict[str, float] = {}
    for line in lines(done):
        if line.kind != "effect":
            worst[line.kind] = max(worst.get(line.kind, 0.0), line.size)
    sizes = "  ".join(f"{kind} {size:.0e}" for kind, size in worst.items())
    print(f"{name}: {'FAILED' if failed else 'ok'}  {sizes}", flush=True)
    for text in failed[:40]:
        print(f"    {text}", flush=True)
    for own in done.found.values():
        told = {f"{key.rpartition('.')[2]}: {reason[:150]}" for key, reason in own.missing.items()}
        for text in sorted(told):
            if "dense" not in text and "chooses the experts" not in text:
                print(f"    not on {own.engine}: {text}", flush=True)


if __name__ == "__main__":
    # By its own name, so that others can read the runs it writes.
    importlib.import_module("tiny_runs").main()
