"""Finds where a model keeps what decides its answer: activation patching.

Two prompts differ in something that changes the answer. One value of one run, at one block and
position, is put into the run of the other; how far the answer moves towards the donor's says how
much of the difference passes there. A sweep does so for every block and position, or every head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Standardized
from nnterp.interventions.blocks import blocks
from nnterp.interventions.tokens import token_ids_of
from nnterp.records.edits import Replace
from nnterp.records.positions import Length, of_one
from nnterp.vocabulary.names import Place, places
from nnterp.vocabulary.values import VALUES

#: A function of logits, ``[runs, vocab]``, that returns a number for each, ``[runs]``.
Metric = Callable[[Tensor], Tensor]

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
    measure = _metric(model, tokens, metric)
    names = [values] if isinstance(values, str) else list(values)
    swept = _places(model, names, layers, heads)
    ids = token_ids(model.tokenizer, [clean, corrupted])
    donor, patched = ids if into == "corrupted" else ids[::-1]
    taken, put = _columns(positions, len(donor), len(patched))
    source = [at for column in taken for at in column]
    if len(set(source)) < len(source):
        raise ValueError(f"two columns share a position of the prompt: {positions}")

    at = [place for row in swept for place in row]
    reads: dict[str, Any] = {str(place): [sorted(source), []] for place in at}
    found = model.collect([donor, patched], {**reads, "logits": "last"}, batch_size=batch_size)
    both = _measured(measure, found["logits"])
    if both[0] == both[1]:
        raise ValueError(
            f"the metric is {both[0].item()} on the clean and on the corrupted prompt alike, so "
            "nothing can be said to move it from one to the other; choose another metric or prompts"
        )

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
        parts.append(_measured(measure, done["logits"]))
    first, second = both.tolist()
    on_clean, on_corrupted = (first, second) if into == "corrupted" else (second, first)
    shape = [len(swept), len(swept[0]), len(columns)]
    measured = torch.cat(parts).view(shape if not isinstance(values, str) else shape[1:])
    effects = (measured - on_corrupted) / (on_clean - on_corrupted)
    indices = [place.layer for place in swept[0] if place.layer is not None]
    return Sweep(effects, measured, on_clean, on_corrupted, names, indices, columns, labels, into)


def _metric(
    model: Standardized, tokens: Sequence[int | str] | None, metric: Metric | None
) -> Metric:
    """Return what is measured of logits, ``[runs, vocab]``."""
    if (tokens is None) == (metric is None):
        raise TypeError("say what is measured: tokens=[right, wrong], or metric=a function")
    if metric is not None:
        return metric
    assert tokens is not None
    ids = token_ids_of(model.tokenizer, tokens, model.vocab_size)
    if len(ids) > 2:
        raise ValueError(f"tokens are one, or the right and the wrong one; here are {len(ids)}")
    if len(ids) == 1:
        return lambda logits: logits[:, ids[0]]
    return lambda logits: logits[:, ids[0]] - logits[:, ids[1]]


def _measured(measure: Metric, logits: Any) -> Tensor:
    """Return the metric of ``logits``, ``[runs, vocab]``, in float32, ``[runs]``."""
    found = measure(logits.float())
    if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(
            f"a metric returns a tensor with a number for each run, {list(logits.shape[:1])}, and "
            f"this one {got}"
        )
    return found.float()


def _places(
    model: Standardized, names: Sequence[str], layers: int | Iterable[int] | None, heads: bool
) -> list[list[Place]]:
    """Return the places that each of ``names`` stands for, of the blocks ``layers``."""
    if not names:
        raise ValueError("no value is named; write 'layers.*.layer_output'")
    count = model.num_layers
    wanted = set(blocks(model, layers))
    swept = []
    for name in names:
        own = places(name, count)
        value = own[0].value
        if own[0].layer is None or "key" in value.axes or value.token_axis is None:
            fit = ", ".join(
                known.name
                for known in VALUES.values()
                if known.host != "model" and "key" not in known.axes and known.writable_on
            )
            raise ValueError(f"{name!r} has no rows of tokens in each block; there are {fit}")
        if heads and not {"heads", "kv_heads"} & set(value.axes):
            raise ValueError(
                f"{name!r} has no heads; sweep 'layers.*.self_attn.attention_head_outputs', or "
                "leave heads out"
            )
        swept.append([place for place in own if place.layer in wanted])
    if not swept[0] or len({tuple(place.layer for place in own) for own in swept}) > 1:
        raise ValueError("the values are of the same blocks, and of one at least")
    return swept


def _columns(positions: Any, donor: int, patched: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the positions of each column of a sweep, in the donor's prompt and in the patched.

    Args:
        positions: As `activation_patching` takes them.
        donor: The number of tokens of one prompt.
        patched: The number of tokens of the other.

    Raises:
        ValueError: A column is not of as many positions in both.
        IndexError: A prompt has no such position.
    """
    if isinstance(positions, str):
        if positions in ("all", "prompt") and donor != patched:
            raise ValueError(
                f"the prompts have {donor} and {patched} tokens, so their positions do not match "
                "one by one: choose prompts of one length, or positions that mean the same in "
                "both, such as positions=[-2, -1]"
            )
        if positions not in ("all", "prompt", "last"):
            raise ValueError(
                f"{positions!r} is no choice of columns; write 'all', 'last', or several positions"
            )
        each = [
            [[at] for at in range(n - 1 if positions == "last" else 0, n)] for n in (donor, patched)
        ]
        return each[0], each[1]
    listed = positions.tolist() if hasattr(positions, "tolist") else positions
    columns = [listed] if isinstance(listed, int) else list(listed)
    if not columns:
        raise ValueError("no position is named; write positions='all'")

    def within(column: Any, n: int) -> list[int]:
        group = [column] if isinstance(column, int) else list(column)
        if not group:
            raise ValueError("a column of the sweep has no position")
        found = []
        for one in group:
            (only,) = of_one(one, Length(n, n))
            found.append(only.start)
        return found

    return [within(one, donor) for one in columns], [within(one, patched) for one in columns]


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
