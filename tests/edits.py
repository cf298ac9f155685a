"""Every kind of edit at every writable value: by `run`, and by a trace that does the same.

What a trace does is written here in plain arithmetic, apart from what `run` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import nnsight
import torch
from torch import Tensor

import checkpoints
from nnterp import Add, Edit, ProjectOut, Read, Replace, Scale, SetCoefficient, Zero
from nnterp.engines.transformers.batches.batching import why_alone
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.values import VALUES, Value

PROMPT = checkpoints.PROMPT[:9]

#: The prompt's step and those after it.
STEPS = 2

#: The block whose values are edited.
BLOCK = 0

#: The positions that `Replace` has a row for each of.
REPLACED = (1, 4, 5)

#: For a token that would end a generation.
NO_TOKEN = -1

#: The values that others' queries look at.
IN_THE_CACHE = ("attention_keys", "attention_values")

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
    heads: Any


def cases(model: Any) -> list[Case]:
    """A case for each kind of edit and value that ``model`` has writable in `BLOCK`."""
    served = model.support()
    found: list[Case] = []
    for value in VALUES.values():
        row = served[value.name]
        if not row or (value.host != "model" and BLOCK not in row.blocks):
            continue
        host = model.host_of(value, BLOCK)
        if getattr(type(host), value.name).why_read_only(host) is None:
            found += _of_ids(value) if value.axes == ("batch", "seq") else _of(model, value)
    return found


def _of_ids(value: Value) -> list[Case]:
    """The cases of a value that holds token ids."""
    ids = torch.tensor([7, 8, 9])

    def replaced(rows: Tensor) -> Tensor:
        return ids

    edits = [
        (Replace(value.name, ids, positions=list(REPLACED)), replaced, REPLACED),
        (Zero(value.name, positions=2), torch.zeros_like, (2,)),
    ]
    return [
        Case(f"{value.name} {edit.kind}", value, edit, change, where, None)
        for edit, change, where in edits
    ]


def _of(model: Any, value: Value) -> list[Case]:
    """The cases of a value that holds vectors."""
    name = named(value)
    length = len(PROMPT)
    # A query has a column for each key, of which there are as many as tokens on the prompt's step.
    pattern = "key" in value.axes
    shape = shape_of(model, value)
    draw = torch.Generator().manual_seed(list(VALUES).index(value.name))
    vector = torch.randn(shape[-1], generator=draw)
    unit = vector / vector.norm()
    heads = [0] if len(shape) > 1 else None
    rows = torch.randn(len(REPLACED), *([1] if heads else []), shape[-1], generator=draw)

    prompt = tuple(range(length))
    last = (length - 1, length)
    every: tuple[str, tuple[int, ...]] = ("all", tuple(range(length + STEPS - 1)))
    ends: tuple[str, tuple[int, ...]] = ("last", last)
    if pattern:
        every = ends = ("prompt", prompt)
    if value.name in IN_THE_CACHE:  # a sharp head may not look at the last one
        ends = every
    # To add one vector to all keys of a head changes nothing.
    added: Any = (list(REPLACED), REPLACED) if value.name == "attention_keys" else every
    replaced: Any = (list(REPLACED), REPLACED)
    if value.name == "logits":  # vLLM computes each step's last alone
        replaced, rows = ends, rows[0]

    def without(x: Tensor) -> Tensor:
        return x - (x * unit).sum(-1, keepdim=True) * unit

    made: list[tuple[Edit, Rows, Sequence[int]]] = [
        (
            Add(name, vector, 1.5, heads=heads, positions=added[0]),
            lambda x: x + 1.5 * vector,
            added[1],
        ),
        (Scale(name, 0.5, steps=0, heads=heads), lambda x: x * 0.5, prompt),
        (
            Replace(name, rows, heads=heads, positions=replaced[0]),
            lambda x: rows.expand_as(x),
            replaced[1],
        ),
        (Zero(name, heads=heads), torch.zeros_like, range(length + STEPS)),
    ]
    if pattern and shape[-1] != length:  # there are columns of more than the tokens' keys
        made = [one for one in made if one[0].vector_given is None]
    elif value.name != "attention_scores":  # of a score that is -inf there is no component
        made += [
            (ProjectOut(name, 3 * vector, positions=every[0]), without, every[1]),
            (
                SetCoefficient(name, vector, 2.0, positions=ends[0]),
                lambda x: without(x) + 2.0 * unit,
                ends[1],
            ),
        ]
    return [
        Case(f"{value.name} {edit.kind}", value, edit, change, tuple(where), edit.heads)
        for edit, change, where in made
    ]


def named(value: Value) -> str:
    """The name of the value, in `BLOCK` where it is of a block."""
    return str(Place(value, None if value.host == "model" else BLOCK))


def shape_of(model: Any, value: Value) -> tuple[int, ...]:
    """The shape of a position's row, as a trace serves it."""

    def last(served: Tensor) -> Tensor:
        axis = value.token_axis
        assert axis is not None
        return served.select(axis, -1)[0]

    reads = [Read(named(value), last)]
    found = model.run([PROMPT], reads=reads, max_tokens=STEPS, **settings(model))
    return tuple(found[named(value)].shape[1:])


class Edited(NamedTuple):
    """The logits of each step, ``[steps, vocab]``, under each case.

    Attributes:
        by_run: By `run`, by the case's key.
        by_trace: By a trace.
        plain: Without an edit, of a prompt alone.
        beside: Without an edit, of a prompt that the edited ones share batches with.
    """

    by_run: dict[str, Tensor]
    by_trace: dict[str, Tensor]
    plain: Tensor
    beside: Tensor


def edited(model: Any) -> Edited:
    """What becomes of the logits under each case."""
    of = cases(model)
    plain = model.run([PROMPT], reads=[Read("logits")], max_tokens=STEPS, **settings(model))
    found, beside = by_run(model, of)
    return Edited(found, by_trace(model, of), plain["logits"][0], beside)


def by_run(model: Any, of: list[Case]) -> tuple[dict[str, Tensor], Tensor]:
    """The logits of each step of each case, ``[steps, vocab]``, and of a prompt without an edit.

    All are of one `run`.
    """
    edits: list[list[Edit]] = [[], *([case.edit] for case in of)]
    done = model.run(
        [PROMPT] * len(edits),
        reads=[Read("logits")],
        edits=edits,
        max_tokens=STEPS,
        **settings(model),
    )
    beside, *rows = done["logits"]
    return dict(zip((case.key for case in of), rows, strict=True)), beside


def settings(model: Any) -> dict[str, Any]:
    """What makes a generation of `STEPS` tokens, whichever they are."""
    if model.engine_adapter.engine == "vllm":
        return {"ignore_eos": True}
    return {"eos_token_id": NO_TOKEN}


def by_trace(model: Any, of: list[Case]) -> dict[str, Tensor]:
    """The same by traces, of an invoke for each case."""
    if model.engine_adapter.engine == "vllm":
        how = {"max_tokens": STEPS, "ignore_eos": True, "temperature": 0.0}
        together = [of]
    else:
        how = {"max_new_tokens": STEPS, "eos_token_id": NO_TOKEN, "do_sample": False}
        alone = why_alone(model, len(PROMPT) + STEPS, generating=True) is not None
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
    # A model without a cache runs all positions over again, and they are edited over again.
    run = list(range(length + step))[-len(rows) :]
    mine = [index for index, position in enumerate(run) if position in case.positions]
    if "key" in case.value.axes and step and len(run) > 1:
        # Of the keys that the rows of the prompt's step have.
        of_prompt = [index for index in mine if run[index] < length]
        put(case, rows[..., :length], of_prompt)
        mine = [index for index in mine if run[index] >= length]
    put(case, rows, mine)


def put(case: Case, rows: Tensor, mine: list[int]) -> None:
    """Make the change of ``case`` in some of ``rows``, in place."""
    if not mine:
        return
    own = rows[mine]
    if case.heads is None:
        own = case.change(own)
    else:
        own[:, case.heads] = case.change(own[:, case.heads])
    rows[mine] = own
