"""Every kind of edit at every writable value: by `run`, and by a trace that does the same.

What a trace does is written here in plain arithmetic, apart from what `run` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import nnsight
import torch
from torch import Tensor

import checkpoints
from nnterp import Add, Edit, ProjectOut, Read, Replace, Scale, SetCoefficient, Zero
from nnterp.engines.transformers.batches.batching import rule
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.values import VALUES, Value

PROMPT = checkpoints.PROMPT[:9]

#: The prompt's step and those after it.
STEPS = 2

#: The block whose values are edited.
BLOCK = 0

#: The positions that `Replace` has a row for each of.
REPLACED = (1, 4, 5)

Rows = Callable[[Tensor], Tensor]


@dataclass
class Case:
    """An edit, and the same in plain arithmetic.

    Attributes:
        key: The value's name and the edit's kind.
        value: The value.
        edit: The edit.
        change: Returns what becomes of some rows, of all heads.
        positions: The positions that are edited.
        heads: The heads that are edited, or None.
    """

    key: str
    value: Value
    edit: Edit
    change: Rows
    positions: tuple[int, ...]
    heads: list[int] | None


def cases(model: Any) -> list[Case]:
    """A case for each kind of edit and value that ``model`` has writable in `BLOCK`."""
    served = model.support()
    found: list[Case] = []
    length = len(PROMPT)
    every = tuple(range(length + STEPS - 1))
    engine = model.engine_adapter.engine
    for number, value in enumerate(VALUES.values()):
        row = served[value.name]
        if not row or (value.host != "model" and BLOCK not in row.blocks):
            continue
        host = model.host_of(value, BLOCK)
        if getattr(type(host), value.name).why_read_only(host) is not None:
            continue
        name = str(Place(value, None if value.host == "model" else BLOCK))
        draw = torch.Generator().manual_seed(number)
        if value.axes == ("batch", "seq"):
            ids = torch.tensor([7, 8, 9])
            where = list(REPLACED)
            found += [
                Case(
                    f"{value.name} replace",
                    value,
                    Replace(name, ids, positions=where),
                    lambda x, ids=ids: ids,
                    REPLACED,
                    None,
                ),
                Case(
                    f"{value.name} zero",
                    value,
                    Zero(name, positions=2),
                    torch.zeros_like,
                    (2,),
                    None,
                ),
            ]
            continue
        pattern = "key" in value.axes
        shape = (model.num_heads, length) if pattern else shape_of(model, value)
        vector = torch.randn(shape[-1], generator=draw)
        unit = vector / vector.norm()
        has_heads = len(shape) > 1
        heads: Any = [0] if has_heads else None
        own = (1, shape[-1]) if has_heads else shape[-1:]
        rows = torch.randn(len(REPLACED), *own, generator=draw)
        span = {"positions": "prompt"} if pattern else {}
        prompt = tuple(range(length))
        narrow = value.layout_on(engine) != value.layout
        # Logits are of each step's last position on vLLM, and of a generation on transformers.
        last = value.name == "logits"
        where = {"positions": "last"} if narrow or last else {"positions": list(REPLACED)}
        replaced: Any = (length - 1, length) if last else REPLACED
        new = rows[0] if last else rows

        def along(x: Tensor, unit: Tensor = unit) -> Tensor:
            return (x * unit).sum(-1, keepdim=True) * unit

        made: list[tuple[str, Edit, Rows, Any, Any]] = [
            (
                "add",
                Add(name, vector, 1.5, heads=heads, **span),
                lambda x, v=vector: x + 1.5 * v,
                prompt if pattern else every,
                heads,
            ),
            ("scale", Scale(name, 0.5, steps=0), lambda x: x * 0.5, prompt, None),
            (
                "replace",
                Replace(name, new, heads=heads, **where),
                lambda x, r=new: r.expand_as(x),
                replaced,
                heads,
            ),
            ("zero", Zero(name, heads=heads), torch.zeros_like, every, heads),
        ]
        if value.name != "attention_scores":  # of a score that is -inf there is no component
            made += [
                (
                    "project_out",
                    ProjectOut(name, 3 * vector, **span),
                    lambda x, along=along: x - along(x),
                    prompt if pattern else every,
                    None,
                ),
                (
                    "set_coefficient",
                    SetCoefficient(name, vector, 2.0, positions="prompt" if pattern else "last"),
                    lambda x, along=along, u=unit: x - along(x) + 2.0 * u,
                    prompt if pattern else (length - 1, length),
                    None,
                ),
            ]
        found += [
            Case(f"{value.name} {kind}", value, edit, change, positions, on)
            for kind, edit, change, positions, on in made
        ]
    return found


def shape_of(model: Any, value: Value) -> tuple[int, ...]:
    """The shape of a position's row, as a trace serves it."""
    found = model.collect(
        [PROMPT], {str(Place(value, None if value.host == "model" else BLOCK)): "last"}
    )
    return tuple(next(iter(found.values())).shape[1:])


class Edited(NamedTuple):
    """The logits of each step, ``[steps, vocab]``, under each case.

    Attributes:
        by_run: By `run`, by the case's key.
        by_trace: By a trace.
        plain: Without an edit.
    """

    by_run: dict[str, Tensor]
    by_trace: dict[str, Tensor]
    plain: Tensor


def edited(model: Any) -> Edited:
    """What becomes of the logits under each case."""
    of = cases(model)
    plain = model.run([PROMPT], reads=[Read("logits")], max_tokens=STEPS, **settings(model))
    return Edited(by_run(model, of), by_trace(model, of), plain["logits"][0])


def by_run(model: Any, of: list[Case]) -> dict[str, Tensor]:
    """The logits of each step of each case, ``[steps, vocab]``, all in one `run`."""
    done = model.run(
        [PROMPT] * len(of),
        reads=[Read("logits")],
        edits=[[case.edit] for case in of],
        max_tokens=STEPS,
        **settings(model),
    )
    return {case.key: rows for case, rows in zip(of, done["logits"], strict=True)}


def settings(model: Any) -> dict[str, Any]:
    """What makes a generation of `STEPS` tokens, whichever they are."""
    if model.engine_adapter.engine == "vllm":
        return {"ignore_eos": True}
    return {"min_new_tokens": STEPS}


def by_trace(model: Any, of: list[Case]) -> dict[str, Tensor]:
    """The same by traces, of an invoke for each case."""
    if model.engine_adapter.engine == "vllm":
        how = {"max_tokens": STEPS, "ignore_eos": True, "temperature": 0.0}
        together = [of]
    else:
        how = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}
        alone = rule(model, "ALONE", len(PROMPT)) is not None
        together = [[case] for case in of] if alone else [of]
    found: dict[str, Tensor] = {}
    for group in together:
        with torch.no_grad(), model.generate(**how) as tracer:
            logits = nnsight.save({case.key: [] for case in group})
            for case in group:
                with tracer.invoke(torch.tensor([PROMPT])):
                    for step in tracer.iter[:STEPS]:
                        host = model.host_of(case.value, BLOCK)
                        change(case, getattr(host, case.value.name), step)
                        logits[case.key].append(model.logits[0, -1].clone())
        found |= {key: torch.stack(rows) for key, rows in logits.items()}
    return found


def change(case: Case, value: Tensor, step: int) -> None:
    """Make the change of ``case`` in the value of a step, in place."""
    axis = case.value.token_axis
    assert axis is not None
    rows = value.movedim(axis, 1)[0]
    length = len(PROMPT)
    run = list(range(length)) if step == 0 else [length + step - 1]
    run = run[-len(rows) :]
    mine = [index for index, position in enumerate(run) if position in case.positions]
    if not mine:
        return
    if case.heads is None:
        rows[mine] = case.change(rows[mine])
    else:
        own = rows[mine]
        own[:, case.heads] = case.change(own[:, case.heads])
        rows[mine] = own
