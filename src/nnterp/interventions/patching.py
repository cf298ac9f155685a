"""Finds where a model keeps what decides its answer: activation patching.

Two prompts differ in something that changes the answer. One value of one run, at one block and
position, is put into the run of the other; how far the answer moves towards the donor's says how
much of the difference passes there. A sweep does so for every block and position, or every head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Standardized
from nnterp.interventions.swept import (
    Metric,
    measured_by,
    metric_of,
    require_apart,
    swept_columns,
    swept_places,
)
from nnterp.records.edits import Replace

#: The most logits that are kept before the metric is taken of them.
_AT_ONCE = 1 << 28


@dataclass(frozen=True, eq=False)
class Sweep:
    """A `Sweep` is what patching did, cell by cell.

    Attributes:
        effects: ``[layers, positions]``, or with heads ``[layers, heads]``, and in front ``values``
            where several were swept: 0 where the metric is the corrupted run's, 1 where it is the
            clean run's, whichever of them was patched.
        measured: The metric itself, in the same shape.
        clean: The metric on the clean run.
        corrupted: The metric on the corrupted run.
        values: The names of the values, in order, as they were given.
        layers: The blocks, counted from the first.
        columns: For each column the positions of the patched prompt that it stands for, or with
            heads the head.
        labels: The columns in words: the tokens that were patched, or the head's number.
        into: Which run was patched.
    """

    effects: Tensor
    measured: Tensor
    clean: float
    corrupted: float
    values: list[str]
    layers: list[int]
    columns: list[Any]
    labels: list[str]
    into: Literal["corrupted", "clean"]


def activation_patching(
    model: Standardized,
    clean: Any,
    corrupted: Any,
    values: str | Sequence[str] = "layers.*.layer_output",
    positions: Any = "all",
    *,
    tokens: Sequence[int | str] | None = None,
    metric: Metric | None = None,
    heads: bool = False,
    layers: int | Iterable[int] | None = None,
    into: Literal["corrupted", "clean"] = "corrupted",
    batch_size: int | None = None,
) -> Sweep:
    """Put values of one run into the run of another prompt, one place at a time.

    All cells of the sweep run together, each as a prompt with an edit of its own::

        sweep = activation_patching(
            model, "The Eiffel Tower is in", "The Colosseum is in", tokens=[" Paris", " Rome"]
        )
        sweep.effects  # [layers, positions]

    Args:
        model: A model, on either engine.
        clean: The prompt with the answer that is looked for: a text, token ids or a chat.
        corrupted: The prompt without it.
        values: The value to patch, a writable one of the blocks, ``*`` standing for every block;
            or several of them.
        positions: The columns of the sweep: ``"all"`` or ``"last"``; or several, each a position,
            or a list of positions that are patched together. They mean the same in both prompts,
            whose lengths have to be equal for ``"all"``.
        tokens: What is measured of the last position: the logit of the first less that of the
            second, or the logit of one; as ids or as texts of one token each.
        metric: In its place, a function of the logits of the last position, ``[runs, vocab]``, that
            returns ``[runs]``.
        heads: Whether to patch one head at a time, at all of ``positions`` together.
        layers: The blocks to patch, of those that ``values`` name.
        into: The run that is patched, with values of the other.
        batch_size: The most prompts at a time.

    Returns:
        The effects, 0 for the corrupted run's metric and 1 for the clean run's.

    Raises:
        Unavailable: A value is not served here.
        ValueError: A value is not a block's or cannot be written, positions do not match, or the
            metric is the same on both runs.
        IndexError: A block, a position or a token does not exist.
        TypeError: There is neither a metric nor tokens, or both, or a metric returns no number for
            each run.
    """
    if into not in ("corrupted", "clean"):
        raise ValueError(f"into is 'corrupted' or 'clean', the run that is patched, not {into!r}")
    measure = metric_of(model, tokens, metric)
    names = [values] if isinstance(values, str) else list(values)
    swept = swept_places(model, names, layers, heads)
    ids = token_ids(model.tokenizer, [clean, corrupted])
    donor, patched = ids if into == "corrupted" else ids[::-1]
    taken, put = swept_columns(positions, len(donor), len(patched))
    source = [at for column in taken for at in column]

    at = [place for row in swept for place in row]
    reads: dict[str, Any] = {str(place): [sorted(source), []] for place in at}
    found = model.collect([donor, patched], {**reads, "logits": "last"}, batch_size=batch_size)
    both = measured_by(measure, found["logits"])
    require_apart(*both.tolist())

    order = {position: row for row, position in enumerate(sorted(source))}
    rows = {place: found[str(place)][0] for place in at}
    columns: list[Any]
    edits = []
    if heads:
        count = next(iter(rows.values())).shape[1]
        if any(own.shape[1] != count for own in rows.values()):
            raise ValueError("these values have different numbers of heads; sweep them one by one")
        columns = list(range(count))
        whole, where = _paired(order, taken, put)
        for place in at:
            own = rows[place][whole]
            for head in columns:
                edit = Replace(str(place), own[:, [head]], positions=where, heads=[head])
                edits.append([edit])
        labels = [str(head) for head in columns]
    else:
        columns = put
        for place in at:
            for one, target in zip(taken, put, strict=True):
                from_rows, where = _paired(order, [one], [target])
                edits.append([Replace(str(place), rows[place][from_rows], positions=where)])
        decode = model.tokenizer.decode
        labels = ["".join(decode([patched[at]]) for at in column) for column in put]

    parts = []
    at_once = max(1, _AT_ONCE // model.vocab_size)
    for start in range(0, len(edits), at_once):
        own_edits = edits[start : start + at_once]
        done = model.collect(
            [patched] * len(own_edits), {"logits": "last"}, edits=own_edits, batch_size=batch_size
        )
        parts.append(measured_by(measure, done["logits"]))
    first, second = both.tolist()
    on_clean, on_corrupted = (first, second) if into == "corrupted" else (second, first)
    shape = [len(swept), len(swept[0]), len(columns)]
    measured = torch.cat(parts).view(shape if not isinstance(values, str) else shape[1:])
    effects = (measured - on_corrupted) / (on_clean - on_corrupted)
    indices = [place.layer for place in swept[0] if place.layer is not None]
    return Sweep(effects, measured, on_clean, on_corrupted, names, indices, columns, labels, into)


def _paired(
    order: dict[int, int], taken: Sequence[Sequence[int]], put: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the rows to take and the positions they go to, in the order of the positions.

    An edit's rows are in the order of its positions in the prompt, whatever order they are named
    in.
    """
    pairs = sorted(
        (to, order[at])
        for one, other in zip(taken, put, strict=True)
        for at, to in zip(one, other, strict=True)
    )
    return [row for _, row in pairs], [to for to, _ in pairs]
