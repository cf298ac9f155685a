"""Checks edits before anything runs, and resolves them to changes of prompts' rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nnterp.collecting.request import ServedModel, require_served
from nnterp.errors import Unavailable, did_you_mean
from nnterp.records.edits import Affine, Edit, Replace, Zero
from nnterp.records.positions import Length, Ranges, both, count, of_each, of_one, of_steps
from nnterp.vocabulary.names import Place, places
from nnterp.vocabulary.values import Value

#: The names of axes that hold heads.
HEADS = ("heads", "kv_heads")


class Change(NamedTuple):
    """A `Change` is an edit of one prompt's rows of a value.

    Attributes:
        affine: What becomes of a row. Its tensors are ``[1, *row]``, for every edited row, or
            ``[rows, *row]``, with one for each.
        heads: Where the value has heads, those that are edited; None for all.
        ranges: The positions of the edited rows.
    """

    affine: Affine
    heads: tuple[int, ...] | None
    ranges: Ranges


#: The changes of each prompt at each place, in the order in which they are made.
Changes = Mapping[Place, Mapping[int, Sequence[Change]]]


class EditedModel(ServedModel, Protocol):
    """`EditedModel` is what these checks need of a model, of either class."""

    #: The vectors that edits may name.
    vectors: Mapping[str, Tensor]

    def row_shapes(self, at: Sequence[Place]) -> Mapping[Place, tuple[int, ...]]:
        """Return the shape of one position's row of the value at each place."""


def resolved(
    model: EditedModel, edits: Sequence[Any], lengths: Sequence[Length]
) -> dict[Place, dict[int, list[Change]]]:
    """Return what ``edits`` change at each place, in the order of the forward's values.

    Args:
        model: The model.
        edits: Edits of every prompt, or for each prompt a sequence of its own.
        lengths: The length of each prompt's sequence.

    Raises:
        Unavailable: This checkpoint or engine does not serve one of the values.
        ValueError: A name is no value's or no vector's, a value is read-only or has no heads, a
            vector has the wrong width, or positions are not valid.
        IndexError: A block, a head or a position of a prompt does not exist.
        TypeError: One is no edit, or does not suit its value.
    """
    found: dict[Place, dict[int, list[Change]]] = {}
    every = _of_prompts(edits, len(lengths))
    at = {id(edit): _said(name, places, edit.value, model.num_layers) for name, edit, _ in every}
    # A prompt's edits are mostly of the same places as another's.
    editable: set[tuple[Place, type[Edit], bool]] = set()
    for name, edit, _ in every:
        for place in at[id(edit)]:
            kind = place, type(edit), edit.heads is None
            if kind not in editable:
                _said(name, _require_editable, model, place, edit)
                editable.add(kind)
    shapes = model.row_shapes([place for _, edit, _ in every for place in at[id(edit)]])
    for name, edit, prompts in every:
        ranges = _said(name, _ranges, edit, prompts, lengths)
        vector = _said(name, _vector, model, edit)
        # Blocks of one shape share a change.
        made: dict[Any, Change] = {}
        for place in at[id(edit)]:
            for prompt, own in zip(prompts, ranges, strict=True):
                _said(name, _require_served_there, model, place, edit, own, lengths[prompt])
                row = shapes[place]
                if "key" in place.value.axes:
                    row = (*row[:-1], lengths[prompt].prompt)
                key = row, own
                if key not in made:
                    made[key] = _said(name, _change, place, edit, vector, row, own, lengths[prompt])
                found.setdefault(place, {}).setdefault(prompt, []).append(made[key])
    return found


def _of_prompts(edits: Sequence[Any], prompts: int) -> list[tuple[str, Edit, list[int]]]:
    """Return each edit with its name for error messages and the prompts that it is for."""
    if isinstance(edits, Edit):
        raise TypeError(f"edits are a list: write [{edits.kind} ...]")
    listed = list(edits)
    if any(not isinstance(one, Edit) for one in listed):
        if any(isinstance(one, Edit) for one in listed):
            raise TypeError(
                "edits are a list of edits, or a list of edits for each prompt; not both"
            )
        if len(listed) != prompts:
            raise ValueError(f"there are edits for {len(listed)} prompts, and {prompts} prompts")
        own: list[tuple[str, Edit, list[int]]] = []
        for prompt, given in enumerate(listed):
            for index, edit in enumerate(given):
                if not isinstance(edit, Edit):
                    raise TypeError(f"edits[{prompt}][{index}] is no edit: {edit!r}")
                own.append((f"edits[{prompt}][{index}]", edit, [prompt]))
        return own
    return [(f"edits[{index}]", edit, list(range(prompts))) for index, edit in enumerate(listed)]


def _said(name: str, check: Callable[..., Any], *args: Any) -> Any:
    """Call ``check`` on ``args``, and put ``name`` in front of what it raises."""
    try:
        return check(*args)
    except (ValueError, IndexError, TypeError, Unavailable) as error:
        raise type(error)(f"{name}: {error}") from error


def _require_editable(model: EditedModel, place: Place, edit: Edit) -> None:
    """Refuse an edit of a value that is not served, is read-only, or that its kind does not suit.

    Raises:
        Unavailable: The value is not served.
        ValueError: It is read-only, or has no heads.
        TypeError: It is of integers, and the edit computes.
    """
    host = require_served(model, place)
    model.require_declared(place, "edits")
    getattr(type(host), place.value.name).require_writable(host)
    if edit.heads is not None and not set(HEADS) & set(place.value.axes):
        raise ValueError(f"{place} has no heads; leave heads out")
    if place.value.axes == ("batch", "seq") and not isinstance(edit, Replace | Zero):
        raise TypeError(f"{place} holds integers, which can be replaced and nothing else")


def _ranges(edit: Edit, prompts: Sequence[int], lengths: Sequence[Length]) -> list[Ranges]:
    """Return the edited positions of each of ``prompts``."""
    own = [lengths[prompt] for prompt in prompts]
    if len(lengths) == len(prompts) > 1:
        chosen = of_each(edit.positions, own)
    else:
        chosen = [
            of_one(edit.positions, length, prompt)
            for prompt, length in zip(prompts, own, strict=True)
        ]
    return [
        both(ranges, of_steps(edit.steps, length))
        for ranges, length in zip(chosen, own, strict=True)
    ]


def _vector(model: EditedModel, edit: Edit) -> Tensor | None:
    """Return the edit's vector, or None for a kind that has none."""
    given = edit.vector_given
    if given is None and edit.vector_field is None:
        return None
    if isinstance(given, str):
        if given not in model.vectors:
            known = did_you_mean(given, model.vectors)
            raise ValueError(
                f"the model has no vector {given!r}{known}; give it one by "
                f"model.vectors[{given!r}] = ..."
            )
        given = model.vectors[given]
    if not isinstance(given, Tensor):
        raise TypeError(
            f"{edit.vector_field} is a tensor or the name of one in model.vectors, not {given!r}"
        )
    if given.is_complex() or given.is_meta or given.layout is not torch.strided:
        raise TypeError(f"{edit.vector_field} is no dense tensor of real numbers")
    return given.detach().cpu()


def _require_served_there(
    model: EditedModel, place: Place, edit: Edit, ranges: Ranges, length: Length
) -> None:
    """Refuse positions at which the engine does not serve the value."""
    narrow = place.value.layout_on(model.engine_adapter.engine) != place.value.layout
    others = any(start < length.prompt - 1 for start, _ in ranges)
    if narrow and others and not isinstance(edit.positions, str):
        raise ValueError(f"{place} is served for the last position only; ask for 'last' or 'all'")


def _change(
    place: Place,
    edit: Edit,
    vector: Tensor | None,
    row: tuple[int, ...],
    ranges: Ranges,
    length: Length,
) -> Change:
    """Return ``edit`` as a change of the rows, of shape ``row``, in ``ranges``."""
    heads = _heads(place, edit, row)
    if vector is None:
        return Change(edit.affine(None), heads, ranges)
    if "key" in place.value.axes and any(stop > length.prompt for _, stop in ranges):
        raise ValueError(
            f"{place} has a column for each key, of which there are more with every step, so a "
            "vector suits the prompt's step alone: write positions='prompt'"
        )
    affine = edit.affine(_rows_of(place.value, edit, vector, row, heads, count(ranges, length.run)))
    return Change(affine, heads, ranges)


def _heads(place: Place, edit: Edit, row: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the indices of the edited heads, or None for all."""
    if edit.heads is None:
        return None
    given = [edit.heads] if isinstance(edit.heads, int) else list(edit.heads)
    for head in given:
        if not -row[0] <= head < row[0]:
            raise IndexError(f"{place} has {row[0]} heads and no head {head}")
    return tuple(head % row[0] for head in given)


def _rows_of(
    value: Value,
    edit: Edit,
    vector: Tensor,
    row: tuple[int, ...],
    heads: tuple[int, ...] | None,
    positions: int,
) -> Tensor:
    """Return ``vector`` as ``[1, *row]`` or ``[positions, *row]``; a head left out has ones.

    Raises:
        ValueError: It has another shape.
    """
    own = row if heads is None else (len(heads), *row[1:])
    shapes = {own: vector, (positions, *own): vector}
    if len(row) > 1:
        shapes[row[-1:]] = vector
    shape = tuple(vector.shape)
    if shape not in shapes:
        said = " or ".join(str(list(one)) for one in sorted(shapes, key=len))
        raise ValueError(
            f"{edit.vector_field} has shape {list(shape)}, and {edit.value} takes {said}"
        )
    if shape == row[-1:] and len(row) > 1:
        return vector.expand(1, *row)
    rows = vector if len(shape) > len(own) else vector[None]
    if heads is None:
        return rows
    # A head that is not edited has a direction all the same, which is not used.
    every = torch.ones(len(rows), *row, dtype=rows.dtype)
    every[:, list(heads)] = rows
    return every
