"""Composes the changes of one row into a single one.

Changes that are made one after another are one change of the form ``scale x + coefficient (x . d) d
+ add``, as long as no two of them remove a component along different directions. So what is done to
a row is a fixed number of vectors, whatever its edits are, which a table in a recorded graph can
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nnterp.editing.request import Change


class Composed(NamedTuple):
    """A `Composed` is what becomes of a row of a value: ``scale x + coefficient (x . d) d + add``.

    Where ``scale`` is zero nothing of ``x`` is left, whatever it holds. A value without heads
    counts as having one. All are float32 but ``changes``.

    Attributes:
        changes: Whether a head is changed at all, ``[heads, 1]`` bool.
        scale: ``[heads, 1]``.
        add: ``[heads, width]``.
        coefficient: ``[heads, 1]``.
        direction: ``d``, ``[heads, width]``; None where every coefficient is zero.
    """

    changes: Tensor
    scale: Tensor
    add: Tensor
    coefficient: Tensor
    direction: Tensor | None


class RowChange(NamedTuple):
    """A `RowChange` is a change of one position's row.

    Attributes:
        change: The change.
        entry: Which of its vectors the position takes.
    """

    change: Change
    entry: int


class TwoDirections(ValueError):
    """A row is to lose its components along two directions, which is not of the composed form."""


def composed(changes: Sequence[RowChange], row: tuple[int, ...]) -> Composed:
    """Return ``changes``, made in order, as one.

    Args:
        changes: The changes of a row.
        row: The row's shape: ``(width,)`` or ``(heads, width)``.

    Raises:
        TwoDirections: They are not of the form that one change has.
    """
    heads, width = row if len(row) > 1 else (1, *row)
    [((affine, chosen, _), entry), *more] = changes
    if not more and chosen is None and affine.direction is None:  # as most are
        add = _zeros(heads, width) if affine.add is None else _row(affine.add, entry, heads)
        return Composed(_all(heads), _of(affine.scale, heads), add, _zeros(heads, 1), None)
    touched = torch.zeros(heads, 1, dtype=torch.bool)
    scale = torch.ones(heads, 1)
    add = torch.zeros(heads, width)
    coefficient = torch.zeros(heads, 1)
    direction = torch.zeros(heads, width)
    for (affine, chosen, _), entry in changes:
        on = slice(None) if chosen is None else list(chosen)
        touched[on] = True
        if affine.direction is not None and affine.scale != 0:
            along = _row(affine.direction, entry, heads)[on]
            had = coefficient[on] != 0
            if bool((had & (direction[on] != along)).any()):
                raise TwoDirections
            added = (add[on] * along).sum(-1, keepdim=True)
            # A second removal along the same direction finds nothing but what was added since.
            coefficient[on] = -scale[on]
            add[on] = add[on] - added * along
            direction[on] = along
        if affine.scale == 0:
            scale[on], coefficient[on], add[on] = 0.0, 0.0, 0.0
        elif affine.scale != 1:
            scale[on] *= affine.scale
            coefficient[on] *= affine.scale
            add[on] *= affine.scale
        if affine.add is not None:
            add[on] = add[on] + _row(affine.add, entry, heads)[on]
    directed = bool(coefficient.any())
    return Composed(touched, scale, add, coefficient, direction if directed else None)


def packed(each: Sequence[Composed]) -> np.ndarray:
    """Return edits of rows of one shape in one array, which is quickly sent and copied.

    Returns:
        ``[edits, heads, columns]`` in float32, for `unpacked`.
    """
    directed = any(own.direction is not None for own in each)
    parts = [torch.stack([own.changes for own in each]).float()]
    parts += [torch.stack([own.scale for own in each])]
    parts += [torch.stack([own.coefficient for own in each])]
    parts += [torch.stack([own.add for own in each])]
    if directed:
        none = torch.zeros_like(each[0].add)
        parts += [torch.stack([none if own.direction is None else own.direction for own in each])]
    return torch.cat(parts, dim=-1).numpy()


def unpacked(edits: Tensor, width: int) -> Composed:
    """Return edits that `packed` put together, with an axis of edits in front of each tensor.

    Args:
        edits: ``[edits, heads, columns]``.
        width: The width of a row.
    """
    rest = edits.shape[-1] - 3 - width
    changes, scale, coefficient, add, direction = edits.split((1, 1, 1, width, rest), dim=-1)
    return Composed(changes != 0, scale, add, coefficient, direction if rest else None)


def _row(vectors: Tensor, entry: int, heads: int) -> Tensor:
    """Return the vector of ``entry`` among ``vectors``, ``[1 or entries, *row]``, by heads."""
    return vectors[min(entry, len(vectors) - 1)].float().reshape(heads, -1)


@cache
def _of(number: float, heads: int) -> Tensor:
    """Return ``number`` for each head, ``[heads, 1]``."""
    return torch.full((heads, 1), number)


@cache
def _zeros(heads: int, width: int) -> Tensor:
    """Return zeros, ``[heads, width]``."""
    return torch.zeros(heads, width)


@cache
def _all(heads: int) -> Tensor:
    """Return that all heads are changed, ``[heads, 1]``."""
    return torch.ones(heads, 1, dtype=torch.bool)
