"""Says what a sweep is of: its places, its columns, and what is measured of each cell's run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from nnterp.engines.standardized import Standardized
from nnterp.interventions.blocks import blocks
from nnterp.interventions.tokens import token_ids_of
from nnterp.records.positions import Length, of_one
from nnterp.vocabulary.names import Place, places
from nnterp.vocabulary.values import VALUES

#: A function of logits, ``[runs, vocab]``, that returns a number for each, ``[runs]``.
Metric = Callable[[Tensor], Tensor]


def metric_of(
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


def measured_by(measure: Metric, logits: Any) -> Tensor:
    """Return the metric of ``logits``, ``[runs, vocab]``, in float32, ``[runs]``."""
    found = measure(logits.float())
    if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(
            f"a metric returns a tensor with a number for each run, {list(logits.shape[:1])}, and "
            f"this one {got}"
        )
    return found.float()


def require_apart(one: float, other: float) -> None:
    """Refuse a metric that is the same on the two runs of a sweep.

    Raises:
        ValueError: It is.
    """
    if one == other:
        raise ValueError(
            f"the metric is {one} on the clean and on the corrupted prompt alike, so "
            "nothing can be said to move it from one to the other; choose another metric or prompts"
        )


def swept_places(
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


def swept_columns(
    positions: Any, donor: int, patched: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the positions of each column of a sweep, in the donor's prompt and in the patched.

    Args:
        positions: As `activation_patching` takes them.
        donor: The number of tokens of one prompt.
        patched: The number of tokens of the other.

    Raises:
        ValueError: A column is not of as many positions in both, or two share one.
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

    taken, put = ([within(one, n) for one in columns] for n in (donor, patched))
    source = [at for column in taken for at in column]
    if len(set(source)) < len(source):
        raise ValueError(f"two columns share a position of the prompt: {positions}")
    return taken, put
