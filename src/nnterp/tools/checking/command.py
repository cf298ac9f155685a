"""``nnterp check``: load checkpoints, look at every value, and say whether all is well."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from nnterp.engines.config import read_config
from nnterp.engines.gguf import from_gguf
from nnterp.tools.checking import rounding
from nnterp.tools.checking.findings import Findings, examine
from nnterp.tools.checking.verdict import ROUNDING, Line, between, on_its_own
from nnterp.vocabulary.values import VALUES, Engine

ENGINES: tuple[Engine, ...] = ("transformers", "vllm")
PROMPT = "The Eiffel Tower is in the city of"

#: What the lines of a kind are called in the report.
_TITLES = {
    "identity": "input + attention + mlp = output",
    "stream": "a block's output enters the next",
    "projection": "the last stream projected is the logits",
    "effect": "an edit changes the logits",
    "decoded": "the next token's own step",
    "support": "support() says what happens",
    "overwritten": "what was read stays as it was",
    "untouched": "what an edit leaves alone stays",
    "neighbours": "other requests are left alone",
}


def load(path: str, engine: Engine, device: str, dtype: str, tokens: int, **arguments: Any) -> Any:
    """The checkpoint at ``path`` on ``engine``, just large enough for ``tokens``."""
    if engine == "transformers":
        from nnterp.engines.transformers.model import StandardizedTransformer

        return StandardizedTransformer(
            path,
            dispatch=True,
            device=device,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            **arguments,
        )
    from nnterp.engines.vllm.client.model import StandardizedVLLM

    return StandardizedVLLM(
        path,
        dispatch=True,
        dtype=dtype,
        max_model_len=max(64, tokens + 8),
        kv_cache_memory_bytes=200_000_000,
        gpu_memory_utilization=0.5,  # of which none is taken: it is what has to be free
        **arguments,
    )


def check(
    path: str,
    engines: Sequence[Engine] = ENGINES,
    *,
    prompt: str | Sequence[int] = PROMPT,
    device: str = "cpu",
    dtype: str = "float32",
    family: str | None = None,
    both_ways: bool = False,
    progress: bool = True,
) -> tuple[list[Findings], list[Line]]:
    """Examine a checkpoint on one engine or both.

    Args:
        path: A hub id or a checkpoint's folder.
        engines: Which; transformers goes first, whose memory can be had back.
        prompt: A text, or token ids.
        device: Where transformers runs; vLLM knows for itself.
        dtype: Of both. Below float32 little can be told.
        family: A family to use in place of the checkpoint's own.
        both_ways: Whether each value is edited in both ways; otherwise in one.
        progress: Whether to show a bar.

    Returns:
        The findings of each engine, and everything that was held against something.
    """
    ids = prompt if not isinstance(prompt, str) else _ids(path, prompt)
    found: list[Findings] = []
    for engine in sorted(engines):
        model = load(path, engine, device, dtype, len(ids), family=family)
        with tqdm(desc=f"editing on {engine}", unit="edit", disable=not progress) as bar:
            found.append(examine(model, ids, both_ways, bar.update))
        del model
        gc.collect()
    narrow: torch.dtype = getattr(torch, dtype)
    unit = torch.finfo(narrow).eps / torch.finfo(torch.float32).eps
    lines = [line for own in found for line in on_its_own(own, ROUNDING * unit)]
    if len(found) == 2:
        held = list(between(found[1], found[0]))
        beyond = [line for line in held if not line.passed and math.isfinite(line.size)]
        if beyond:
            alone = _rounding(path, device, dtype, family, ids, found[0], beyond)
            held = list(between(found[1], found[0], alone, rounding.TELLING[narrow]))
        lines += held
    return found, lines


def _rounding(
    path: str,
    device: str,
    dtype: str,
    family: str | None,
    ids: Sequence[int],
    found: Findings,
    beyond: Sequence[Line],
) -> dict[tuple[str, str], float]:
    """How far rounding alone moves what lines compare; nothing where it cannot be measured."""
    narrow = getattr(torch, dtype)
    try:
        # The experts' own kernels have no wider type.
        model = load(
            path, "transformers", device, dtype, 0, family=family, experts_implementation="eager"
        )
        model._module.to(rounding.WIDER[narrow])
        return rounding.alone(model, ids, found, beyond, narrow)
    except RuntimeError as error:  # there is no room, or an operation has no wider type
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        warnings.warn(f"what rounding alone makes could not be measured: {said}", stacklevel=2)
        return {}


def _ids(path: str, text: str) -> list[int]:
    """``text`` as the checkpoint's tokens; without a tokenizer, as so many arbitrary ones."""
    from transformers import AutoTokenizer

    config = read_config(path, {}).get_text_config(decoder=True)
    if Path(path).is_dir() and not list(Path(path).glob("tokenizer*")):
        return [5 + 37 * place % (config.vocab_size - 5) for place in range(len(text))]
    return AutoTokenizer.from_pretrained(path)(text)["input_ids"]


def report(found: Sequence[Findings], lines: Sequence[Line]) -> Iterable[str]:
    """The findings as a table a person reads, the worst of each kind a row."""
    blocks = found[0].num_layers
    yield f"{'':34} {'worst':>9}  at"
    for name in VALUES:
        own = [line for line in lines if line.kind == "value" and _name(line.key) == name]
        edited = [line for line in lines if line.kind == "edit" and _name(line.key) == name]
        served = [f for f in found if any(_name(key) == name for key in f.values)]
        if (not own and len(found) == 2) or not served:
            yield f"{name:34} {'-':>9}  {_why(found, name)}"
            continue
        yield _row(name, own, blocks) if own else f"{name:34} {'served':>9}"
        if edited:
            yield _row("  after an edit of it", edited, blocks)
    for kind, title in _TITLES.items():
        own = [line for line in lines if line.kind == kind]
        if own:
            yield _row(title, own, blocks)
    for line in lines:
        if not line.passed:
            verdict = "FAILED" if line.told else "CANNOT BE TOLD"
            size = f"{line.size:.1e}, not {'above' if line.kind == 'effect' else 'below'}"
            said = f"{size} {line.limit:.0e}{_alone(line)}"
            yield f"{verdict} {line.kind} {line.key}: {line.note or said}"


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _row(title: str, lines: Sequence[Line], blocks: int) -> str:
    least = lines[0].kind == "effect"
    worst = (min if least else max)(lines, key=lambda line: line.size)
    failed = sum(not line.passed and line.told for line in lines)
    untold = sum(not line.told for line in lines)
    counts = {f"{failed} of {len(lines)} FAILED": failed, f"{untold} CANNOT BE TOLD": untold}
    note = ", ".join(said for said, count in counts.items() if count) or f"all {len(lines)}"
    return f"{title:34} {worst.size:9.1e}  {worst.key:32} {note}{_alone(worst)}"


def _alone(line: Line) -> str:
    """What rounding alone makes of what a line compares, where it was measured."""
    return "" if line.rounding is None else f"; rounding alone {line.rounding:.1e}"


def _why(found: Sequence[Findings], name: str) -> str:
    reasons = [
        f"{own.engine}: {reason.splitlines()[0]}"
        for own in found
        for key, reason in own.missing.items()
        if _name(key) == name
    ]
    return "; ".join(dict.fromkeys(reasons))


def run(
    models: Sequence[str],
    engines: Sequence[Engine],
    prompt: str,
    device: str | None,
    dtype: str,
    family: str | None,
) -> int:
    """Check and report; the number of checkpoints that do not hold."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if len(models) == 1:
        return _run_one(models[0], engines, prompt, device, dtype, family)
    # A process each, forked from one that has imported both engines and run nothing: with it
    # ends an engine's memory.
    server = multiprocessing.get_context("forkserver")
    imported = {"transformers": "nnterp.transformer", "vllm": "vllm.entrypoints.llm"}
    server.set_forkserver_preload([__name__, *(imported[engine] for engine in engines)])
    failed = []
    for path in models:
        arguments = (path, engines, prompt, device, dtype, family)
        child = server.Process(target=_exit_with, args=arguments)
        child.start()
        child.join()
        if child.exitcode:
            failed.append(path)
    held = len(models) - len(failed)
    print(f"\n{held} of {len(models)} hold{''.join(f'; FAILED {path}' for path in failed)}")
    return min(len(failed), 99)


def _exit_with(*arguments: Any) -> None:
    sys.exit(_run_one(*arguments))


def _run_one(
    path: str,
    engines: Sequence[Engine],
    prompt: str,
    device: str | None,
    dtype: str,
    family: str | None,
) -> int:
    began = time.perf_counter()
    if path.endswith(".gguf"):
        path = str(from_gguf(Path(path)))
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found, lines = check(path, engines, prompt=prompt, device=where, dtype=dtype, family=family)
    print(f"\n{path}: {', '.join(own.family for own in found)}; {dtype} on {where}")
    for text in report(found, lines):
        print(text)
    wrong = sum(not line.passed and line.told for line in lines)
    untold = sum(not line.told for line in lines)
    counts = {f"{wrong} FAILED": wrong, f"{untold} CANNOT BE TOLD": untold}
    verdict = ", ".join(said for said, count in counts.items() if count) or "holds"
    values = [line for line in lines if line.kind == "value"]
    furthest = max(values, key=lambda line: line.size, default=None)
    closest = f", values within {furthest.size:.1e}{_alone(furthest)}" if furthest else ""
    print(
        f"{path}: {verdict} ({len(lines)} comparisons{closest}, "
        f"{time.perf_counter() - began:.0f} s)",
        flush=True,
    )
    return int(verdict != "holds")
