"""Every tiny checkpoint on both engines, each in a process of its own.

    python tests/tiny_runs.py FOLDER [--names NAME ...] [--engines transformers vllm] [--report]
    python tests/tiny_runs.py FOLDER --table

The second writes what came of them to where nnterp looks it up (`nnterp.measured`), and the
table of families.

A process that has imported both engines forks one for each checkpoint, which takes seconds
where an interpreter of its own would take half a minute, and with which an engine's memory
ends. Writes ``FOLDER/NAME.pt``: a `Run`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
import edits
import inplace_norms
import inspected
from nnterp.advice import measured
from nnterp.advice.known_wrong import KnownWrongWarning
from nnterp.sites.routing import DENSE, IN_KERNEL
from nnterp.tools.checking import readings, rounding, table
from nnterp.tools.checking.command import ENGINES
from nnterp.tools.checking.compare import relative_error
from nnterp.tools.checking.findings import Findings, examine
from nnterp.tools.checking.verdict import BEYOND_ROUNDING, CLOSE, Line, between, on_its_own
from tiny import ROWS, TINY

#: What an engine for a tiny checkpoint needs, and no more; of a GPU's memory, what has to be free.
TINY_ENGINE = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 50_000_000}
ENGINE = {"cpu": TINY_ENGINE, "cuda": {**TINY_ENGINE, "gpu_memory_utilization": 0.3}}


@dataclass
class Run:
    """What became of one checkpoint.

    Attributes:
        device: Where: ``cpu`` or ``cuda``.
        found: The findings of each engine.
        collected: What each engine's `collect` kept.
        edited: The logits that each engine computes under each of `edits`' cases, by `run` and by
            a trace, and without an edit.
        own: transformers' own hidden states and attentions, by the key of the value that each is.
        warned: What loading it was warned of.
        rounding: What rounding alone makes of what the engines differ in, by `Line`'s kind and key.
        unsteady: What a model no longer computed to the bit once both engines had run.
        error: The traceback of what went wrong, if anything.
        stopped: The engine that it went wrong on.
        unmade: Whether transformers could not make it.
    """

    device: str = "cpu"
    found: dict[str, Findings] = field(default_factory=dict)
    collected: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    edited: dict[str, edits.Edited] = field(default_factory=dict)
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    rounding: dict[tuple[str, str], float] = field(default_factory=dict)
    unsteady: list[str] = field(default_factory=list)
    error: str = ""
    stopped: str = ""
    unmade: bool = False


def load(name: str, path: Path, engine: str, device: str, **arguments: Any) -> Any:
    if engine == "vllm":
        from nnterp import StandardizedVLLM

        return StandardizedVLLM(str(path), dispatch=True, **{**ENGINE[device], **ROWS[name].engine})
    from nnterp import StandardizedTransformer

    return StandardizedTransformer(
        str(path),
        dispatch=True,
        device=device,
        dtype=torch.float32,
        attn_implementation=ROWS[name].attention,
        **arguments,
    )


def run(name: str, folder: Path, engines: Sequence[str], device: str) -> Run:
    """Examine the checkpoint ``name`` on ``engines``, in their order, and then read both again."""
    done = Run(device=device)
    models: dict[str, Any] = {}
    try:
        try:
            path = checkpoints.make(name, folder)
        except (KeyError, ValueError):
            done.unmade = True
            raise
        for engine in engines:
            if engine == "vllm" and ROWS[name].not_on_vllm:
                continue
            done.stopped = engine
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = models[engine] = load(name, path, engine, device)
            told = [str(w.message) for w in said if w.category is KnownWrongWarning]
            done.warned += told
            done.found[engine] = examine(model, checkpoints.PROMPT)
            if engine == "transformers":
                done.own = own_outputs(name, model)
            kept = model.collect(collects.PROMPTS, collects.wanted(model))
            done.collected[engine] = collects.flat(kept)
            done.edited[engine] = edits.edited(model)
        if len(models) == 2:
            done.rounding = rounding_of(name, path, done, device)
        for engine, model in models.items() if len(models) == 2 else ():
            before = done.found[engine].values
            for key, tensor in readings.values(model, checkpoints.PROMPT).items():
                if not torch.equal(tensor, before[key]):
                    done.unsteady.append(f"{engine} {key}")
        done.stopped = ""
    except Exception:
        done.error = traceback.format_exc()
    return done


def rounding_of(name: str, path: Path, done: Run, device: str) -> dict[tuple[str, str], float]:
    """How far rounding alone moves what the engines differ in by as much as it might."""
    most = BEYOND_ROUNDING * rounding.TELLING[torch.float32]
    beyond = [
        line
        for line in between(done.found["vllm"], done.found["transformers"])
        if limit(name, line)[0] <= line.size < most
    ]
    if not beyond:
        return {}
    # The experts' own kernels have no float64.
    model = load(name, path, "transformers", device, experts_implementation="eager")
    model._module.to(rounding.WIDER[torch.float32])
    found = done.found["transformers"]
    return rounding.alone(model, checkpoints.PROMPT, found, beyond, torch.float32)


def own_outputs(name: str, model: Any) -> dict[str, torch.Tensor]:
    """What transformers itself returns of a forward, beside all of nnterp."""
    ids = torch.tensor([checkpoints.PROMPT], device=model.device)
    with torch.no_grad():
        # Asked for a pattern, an attention that has none may take another way.
        pattern = model._module.config._attn_implementation == "eager"
        own = model._module(ids, output_hidden_states=True, output_attentions=pattern)
    found = {"logits": own.logits[:, -1:].cpu()}
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
    return {key: tensor.cpu() for key, tensor in found.items() if tensor is not None}


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
    return [line for engine in done.found for line in lines_of(done, engine)]


def lines_of(done: Run, engine: str) -> list[Line]:
    """What a run's findings of one engine are held against."""
    found, own = done.found[engine], []
    if engine == "transformers":
        # On a GPU a forward need not give the same twice.
        most = 0.0 if done.device == "cpu" else CLOSE
        for key in sorted(done.own.keys() & found.values.keys()):
            size = relative_error(found.values[key], done.own[key])
            own.append(Line("own", key, size, most, size <= most))
    elif "transformers" in done.found:
        telling = rounding.TELLING[torch.float32]
        own += between(found, done.found["transformers"], done.rounding, telling)
    return [*on_its_own(found), *own]


def failed(name: str, held: Iterable[Line]) -> list[Line]:
    """Those that are not as they must be."""

    def excused(line: Line) -> bool:
        most, cause = limit(name, line)
        return bool(cause) and line.size < most

    return [line for line in held if not line.passed and not excused(line)]


def failures(name: str, done: Run) -> list[str]:
    """What is not as it must be, in words."""
    wrong = [
        f"{line.kind} {line.key}: {line.note or f'{line.size:.1e}'}"
        for line in failed(name, lines(done))
    ]
    return [done.error, *wrong] if done.error else wrong


def measurement(runs: Mapping[str, Run]) -> measured.Measured:
    """What came of runs on this process's engines, for `nnterp.measured`."""
    versions = {engine: importlib.import_module(engine).__version__ for engine in ENGINES}
    found: dict[str, dict[str, dict[str, measured.Outcome]]] = {}
    for name, done in runs.items():
        # One that this transformers does not know was not measured on it.
        if done.unmade:
            continue
        checkpoint = found.setdefault(ROWS[name].model_type, {}).setdefault(name, {})
        for engine in ENGINES:
            if engine in done.found or engine == done.stopped:
                on = measured.engine_name(engine, versions[engine], done.device)
                checkpoint[on] = outcome(name, done, engine)
    return found


def said(error: str) -> str:
    """What an error said, without the tracebacks around it."""
    lines = [line for line in error.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+: \S", line)]
    return (named or lines)[-1]


def outcome(name: str, done: Run, engine: str) -> measured.Outcome:
    """What came of the checkpoint ``name`` on one engine."""
    if engine == done.stopped:
        # Without the folder that it was in.
        return measured.Outcome(failed=re.sub(rf"\S*/{name}\b", name, said(done.error)))
    held = lines_of(done, engine)
    kinds = ("identity", "projection") if engine == "transformers" else ("value", "edit", "decoded")
    sizes = [line.size for line in held if line.kind in kinds and math.isfinite(line.size)]
    worst = max(failed(name, held), key=lambda line: line.size, default=None)
    verdict = "" if worst is None else f"{worst.kind} {worst.key}"
    if worst is not None and not worst.told:
        verdict = f"cannot be told: {verdict}"
    return measured.Outcome(float(f"{max(sizes, default=0.0):.0e}"), verdict)


def table_of(runs: Mapping[str, Run], found: measured.Measured) -> str:
    """The table of families, as these runs make it, with all that was ever ``found``."""
    rows = []
    for name, done in sorted(runs.items(), key=lambda item: (TINY[item[0]].model_type, item[0])):
        row = TINY[name]
        own, vllm = done.found["transformers"], done.found.get("vllm")
        limits = [f"{key} to {size:.0e} ({cause})" for key, (size, cause) in row.limits.items()]
        rows.append(
            table.Row(
                name=table.title(row.model_type, name),
                transformers=own.architecture,
                vllm=f"{vllm.architecture}, {vllm.stream}" if vllm else row.not_on_vllm,
                missing=missing(done),
                verified="; ".join(["both engines" if vllm else "transformers", *limits]),
            )
        )
    return table.with_measured(table.write(rows), found)


def add_measured(new: measured.Measured) -> None:
    """Write what was newly measured to where nnterp looks it up, and to the table of families."""
    found = known(measured.merge(measured.read(), new))
    measured.FILE.write_text(measured.dumps(found))
    table.FILE.write_text(table.with_measured(table.read(), found))


def known(found: measured.Measured) -> measured.Measured:
    """``found`` without the checkpoints that there are no more."""
    return {
        model_type: kept
        for model_type, checkpoints in found.items()
        if (kept := {name: engines for name, engines in checkpoints.items() if name in TINY})
    }


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


def write(name: str, folder: Path, engines: Sequence[str], device: str) -> None:
    partial = folder / f"{name}.partial"
    torch.save(run(name, folder, engines, device), partial)
    partial.rename(folder / f"{name}.pt")


def run_all(
    names: Iterable[str],
    folder: Path,
    engines: Sequence[str] = ENGINES,
    device: str = "cpu",
    *,
    at_once: int = 2,
    loud: bool = False,
    each_within: int = 0,
    all_within: float = math.inf,
) -> Iterator[tuple[str, Run]]:
    """Run checkpoints, some at once, each in a process forked from this; what came of each.

    Args:
        names: The checkpoints.
        folder: Where their `Run` is written.
        engines: The engines, in their order.
        device: Where: ``cpu`` or ``cuda``.
        at_once: How many processes there are at a time.
        loud: Whether they may write to the error stream.
        each_within: The seconds after which a process is ended; 0 for none.
        all_within: The seconds after which no other is begun.
    """
    import vllm.entrypoints.llm  # imported here, once, for every child

    from nnterp import StandardizedTransformer, StandardizedVLLM

    assert all((vllm, StandardizedTransformer, StandardizedVLLM))
    inspected.here()
    if inplace_norms.imitated():
        inplace_norms.imitate()
    end = time.monotonic() + all_within
    running: dict[int, str] = {}
    waiting = list(names)
    while waiting or running:
        while waiting and len(running) < at_once and time.monotonic() < end:
            name = waiting.pop(0)
            child = os.fork()
            if not child:
                signal.alarm(each_within)
                torch.set_num_threads(1)
                if not loud:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                write(name, folder, engines, device)
                sys.stdout.flush()
                os._exit(0)
            running[child] = name
        if not running:
            return
        child, status = os.wait()
        name = running.pop(child)
        file = folder / f"{name}.pt"
        if status or not file.exists():
            died = f"the process ended with status {status}"
            stopped = "transformers" if ROWS[name].not_on_vllm else engines[-1]
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
                # Of which nothing is known.
                died, stopped = f"no end within {each_within} s", ""
            torch.save(Run(device=device, error=died, stopped=stopped), file)
        yield name, torch.load(file, weights_only=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=list(ROWS))
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="write what came of them for nnterp")
    parser.add_argument("--report", action="store_true", help="print what fails, and how far off")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Run] = {}
    for name, done in run_all(
        list(TINY) if arguments.table else arguments.names,
        arguments.folder,
        arguments.engines,
        at_once=arguments.workers,
        loud=arguments.report,
    ):
        if arguments.report:
            print(*report(name, done), sep="\n", flush=True)
        if arguments.table:
            runs[name] = done
    if arguments.table:
        table.FILE.write_text(table_of(runs, {}))
        add_measured(measurement(runs))


def headline(name: str, done: Run) -> str:
    """Whether a run holds, and how far off what it compared is at worst."""
    worst: dict[str, float] = {}
    for line in lines(done):
        if line.kind != "effect":
            worst[line.kind] = max(worst.get(line.kind, 0.0), line.size)
    sizes = "  ".join(f"{kind} {size:.0e}" for kind, size in worst.items())
    return f"{name}: {'FAILED' if failures(name, done) else 'ok'}  {sizes}"


def report(name: str, done: Run) -> Iterator[str]:
    """A run's headline, what does not hold, and what is not served."""
    yield headline(name, done)
    for text in failures(name, done)[:40]:
        yield f"    {text}"
    for own in done.found.values():
        told = {f"{key.rpartition('.')[2]}: {reason[:150]}" for key, reason in own.missing.items()}
        for text in sorted(told):
            if "dense" not in text and "chooses the experts" not in text:
                yield f"    not on {own.engine}: {text}"


if __name__ == "__main__":
    # By its own name, so that others can read the runs it writes.
    importlib.import_module("tiny_runs").main()
