"""Composes the changes of one row into a single one.

Changes that are made one after another are one change of the form ``scale x + coefficient (x . d) d
+ add``, as long as no two of them remove a component along different directions. So what is done to
a row is a fixed number of vectors, whatever its edits are, which a table in a recorded graph can
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    touched = torch.zeros(heads, 1, dtype=torch.bool)
    scale = torch.ones(heads, 1)
    add = torch.zeros(heads, width)
    coefficient = torch.zeros(heads, 1)
    direction = torch.zeros(heads, width)
    for (affine, chosen, _), entry in changes:
        on = slice(None) if chosen is None else list(chosen)
        touched[on] = True
        if affine.direction is not None and affine.scale != 0:
            along = _row(affine.direction, entry, direction)[on]
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
            add[on] = add[on] + _row(affine.add, entry, add)[on]
    directed = bool(coefficient.any())
    return Composed(touched, scale, add, coefficient, direction if directed else None)


def _row(vectors: Tensor, entry: int, like: Tensor) -> Tensor:
    """Return the vector of ``entry`` among ``vectors``, ``[1 or entries, *row]``, as ``like``."""
    return vectors[min(entry, len(vectors) - 1)].to(like.dtype).reshape(like.shape)
