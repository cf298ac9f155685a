"""Loads checkpoints, examines every value, and reports whether all is well (``nnterp check``)."""

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

#: The title of each kind of line in the report.
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
    """Load the checkpoint at ``path`` on ``engine``, just large enough for ``tokens``.

    Args:
        path: A hub id or a checkpoint's folder.
        engine: The engine.
        device: Where transformers runs.
        dtype: The name of the dtype.
        tokens: The number of tokens that the prompt has.
        **arguments: Further arguments of the model class.
    """
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
        gpu_memory_utilization=0.5,  # only requires that much to be free, and allocates none of it
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
        engines: The engines; transformers goes first, because its memory can be freed.
        prompt: A text, or token ids.
        device: Where transformers runs; vLLM chooses for itself.
        dtype: The dtype on both. Below float32 few differences can be told from rounding.
        family: A family to use in place of the checkpoint's own.
        both_ways: Whether each value is edited in both ways, in place and by assignment;
            otherwise in one.
        progress: Whether to show a progress bar.

    Returns:
        The findings of each engine, and the line of every comparison.
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
    """Return how far rounding alone moves what lines compare; nothing if it cannot be measured."""
    narrow = getattr(torch, dtype)
    try:
        # The kernels for experts do not support the wider type.
        model = load(
            path, "transformers", device, dtype, 0, family=family, experts_implementation="eager"
        )
        model._module.to(rounding.WIDER[narrow])
        return rounding.alone(model, ids, found, beyond, narrow)
    except RuntimeError as error:  # out of memory, or an operation lacks the wider type
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        warnings.warn(f"what rounding alone makes could not be measured: {said}", stacklevel=2)
        return {}


def _ids(path: str, text: str) -> list[int]:
    """Return the tokens of ``text``; in a folder without a tokenizer, arbitrary ones."""
    from transformers import AutoTokenizer

    config = read_config(path, {}).get_text_config(decoder=True)
    if Path(path).is_dir() and not list(Path(path).glob("tokenizer*")):
        return [5 + 37 * place % (config.vocab_size - 5) for place in range(len(text))]
    return AutoTokenizer.from_pretrained(path)(text)["input_ids"]


def report(found: Sequence[Findings], lines: Sequence[Line]) -> Iterable[str]:
    """Yield the lines of a readable table of the findings, with the worst of each kind in a row.

    Args:
        found: The findings of each engine.
        lines: The comparisons.
    """
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
    """Return the table's row for ``lines``, with the worst of them."""
    least = lines[0].kind == "effect"
    worst = (min if least else max)(lines, key=lambda line: line.size)
    failed = sum(not line.passed and line.told for line in lines)
    untold = sum(not line.told for line in lines)
    counts = {f"{failed} of {len(lines)} FAILED": failed, f"{untold} CANNOT BE TOLD": untold}
    note = ", ".join(said for said, count in counts.items() if count) or f"all {len(lines)}"
    return f"{title:34} {worst.size:9.1e}  {worst.key:32} {note}{_alone(worst)}"


def _alone(line: Line) -> str:
    """Return what rounding alone makes of what a line compares, as text, if it was measured."""
    return "" if line.rounding is None else f"; rounding alone {line.rounding:.1e}"


def _why(found: Sequence[Findings], name: str) -> str:
    """Return why the engines do not serve the value ``name``."""
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
    """Check checkpoints, print the reports, and return how many of them fail, at most 99.

    Args:
        models: Hub ids, checkpoints' folders or GGUF files.
        engines: The engines to load them on.
        prompt: The text to run.
        device: Where transformers runs; a GPU, if there is one, if None.
        dtype: The name of the dtype.
        family: A family to use in place of the checkpoints' own.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if len(models) == 1:
        return _run_one(models[0], engines, prompt, device, dtype, family)
    # Each checkpoint gets a process, forked from one that has imported the engines and run
    # nothing: an engine's memory is freed when its process ends.
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
    """Check one checkpoint and print its report; return 1 if it fails or cannot be told, else 0."""
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
