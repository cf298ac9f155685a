"""Finds directions in a model's values that stand for a difference between prompts.

Where prompts that have something and prompts that do not differ in the mean of a value, the
difference is a direction along which the model tells them apart. Added to the value, it steers the
model; taken out, the model does without. Of one set of prompts, the principal directions are those
along which its rows vary most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnterp.collecting.collected import Ragged
from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Prompts, Standardized
from nnterp.interventions.swept import swept_places
from nnterp.records.edits import Add
from nnterp.records.positions import Positions, Steps
from nnterp.vocabulary.names import Place


@dataclass(frozen=True, eq=False)
class Directions:
    """A `Directions` is one vector of a value in each of some blocks.

    Attributes:
        vectors: ``[layers, *row]``, in float32 on the CPU: ``[layers, hidden]``, or where the value
            has heads ``[layers, heads, width]``.
        values: The name of the value in each block, as an edit takes it.
        layers: The blocks, counted from the first.
    """

    vectors: Tensor
    values: list[str]
    layers: list[int]

    def vector(self, layer: int) -> Tensor:
        """Return the vector of block ``layer``.

        Raises:
            IndexError: There is none of that block.
        """
        return self.vectors[self._row(layer)]

    def add(
        self, layer: int, factor: float = 1.0, positions: Positions = "all", steps: Steps = None
    ) -> Add:
        """Return the edit that adds ``factor`` times the vector to the value in block ``layer``.

        Args:
            layer: The block.
            factor: The strength.
            positions: The positions, as an edit takes them.
            steps: The steps of a generation, as an edit takes them.

        Raises:
            IndexError: There is no vector of that block.
        """
        row = self._row(layer)
        return Add(
            self.values[row], self.vectors[row], factor=factor, positions=positions, steps=steps
        )

    def _row(self, layer: int) -> int:
        """Return the index of block ``layer`` among `layers`."""
        if layer not in self.layers:
            raise IndexError(f"there is no vector of block {layer}; there are of {self.layers}")
        return self.layers.index(layer)


@dataclass(frozen=True, eq=False)
class PrincipalDirections:
    """A `PrincipalDirections` is the directions along which rows vary most, the first the most.

    Attributes:
        directions: Directions of length 1, in each block at right angles. The feature in which one
            is largest is positive.
        explained: The share of the rows' variance along each, ``[directions, layers]``.
        means: The mean row of each block, from which the rows vary.
    """

    directions: list[Directions]
    explained: Tensor
    means: Directions


def difference_of_means(
    model: Standardized,
    positive: Prompts,
    negative: Prompts,
    value: str = "layers.*.layer_output",
    positions: Positions = "last",
    *,
    layers: int | Iterable[int] | None = None,
    batch_size: int | None = None,
) -> Directions:
    """Return the mean of a value on some prompts less its mean on others, in each block.

    For example::

        found = difference_of_means(model, ["I love this"], ["I hate this"])
        model.run(["I think that"], edits=[found.add(12, factor=2.0)], max_tokens=20)

    Args:
        model: A model, on either engine.
        positive: The prompts that have what is looked for.
        negative: The prompts that do not.
        value: The value, of the blocks, ``*`` standing for every block.
        positions: The positions of each prompt, as `Read` takes them; where they are listed for
            each prompt, those of ``positive`` first. Every row counts the same, so with several
            positions a long prompt counts for more; with ``"mean"`` every prompt counts the same.
        layers: The blocks, of those that ``value`` names; all by default.
        batch_size: The most prompts at a time.

    Raises:
        Unavailable: The value is not served here.
        ValueError: It is no value of the blocks with a row for each token, or positions are not
            valid or none at all.
        IndexError: A block or a position does not exist.
    """
    first, second = (token_ids(model.tokenizer, prompts) for prompts in (positive, negative))
    places = _places(model, value, layers)
    means = []
    for rows in _rows(model, [*first, *second], places, positions, batch_size):
        parts = rows.split([len(first), len(second)])
        means.append(parts[0].mean() - parts[1].mean())
    return _directions(means, places)


def principal_directions(
    model: Standardized,
    prompts: Prompts,
    count: int = 1,
    value: str = "layers.*.layer_output",
    positions: Positions = "last",
    *,
    layers: int | Iterable[int] | None = None,
    batch_size: int | None = None,
) -> PrincipalDirections:
    """Return the directions along which the rows of a value vary most, in each block.

    They are those of a principal component analysis: of the rows less their mean, the right
    singular vectors with the largest singular values. The rows of a value that has heads are taken
    as one vector of all heads.

    Args:
        model: A model, on either engine.
        prompts: Texts, token ids, chats, or the output of a tokenizer.
        count: The number of directions.
        value: The value, of the blocks, ``*`` standing for every block.
        positions: The positions of each prompt, as `Read` takes them.
        layers: The blocks, of those that ``value`` names; all by default.
        batch_size: The most prompts at a time.

    Raises:
        Unavailable: The value is not served here.
        ValueError: It is no value of the blocks with a row for each token, positions are not valid,
            or the rows are all the same or vary along fewer directions than ``count``.
        IndexError: A block or a position does not exist.
    """
    ids = token_ids(model.tokenizer, prompts)
    places = _places(model, value, layers)
    means, found, shares = [], [], []
    for collected in _rows(model, ids, places, positions, batch_size):
        mean = collected.mean()
        rows = collected.rows.double()
        most = min(len(rows) - 1, rows[0].numel())
        if not 1 <= count <= most:
            raise ValueError(
                f"{len(rows)} rows of {rows[0].numel()} numbers vary along {most} directions, so "
                f"count is 1 to {most}, not {count}; give more prompts, or more positions of each"
            )
        _, lengths, along = torch.linalg.svd((rows - mean).flatten(1), full_matrices=False)
        rounding = torch.finfo(collected.rows.dtype).eps * rows.norm()
        if lengths[0] <= rounding:
            raise ValueError("these rows are all the same, so they vary along no direction")
        along = along[:count]
        largest = along.gather(1, along.abs().argmax(1, keepdim=True))
        means.append(mean)
        found.append((along * largest.sign()).view(count, *mean.shape))
        shares.append(lengths[:count].square() / lengths.square().sum())
    each = [_directions([own[index] for own in found], places) for index in range(count)]
    explained = torch.stack(shares, 1).float()
    return PrincipalDirections(each, explained, _directions(means, places))


@dataclass(frozen=True)
class _Rows:
    """A `_Rows` is rows of several prompts.

    Attributes:
        rows: ``[rows, *row]``.
        counts: How many are of each prompt.
    """

    rows: Tensor
    counts: list[int]

    def split(self, prompts: list[int]) -> list[_Rows]:
        """Return the rows of the first prompts, of the next ones and so on, ``prompts`` each."""
        parts, start = [], 0
        left = self.rows
        for number in prompts:
            counts = self.counts[start : start + number]
            parts.append(_Rows(left[: sum(counts)], counts))
            left = left[sum(counts) :]
            start += number
        return parts

    def mean(self) -> Tensor:
        """Return the mean row, in float64."""
        if not len(self.rows):
            raise ValueError("no position of these prompts is kept, so they have no mean")
        return self.rows.double().mean(0)


def _places(model: Standardized, value: str, layers: int | Iterable[int] | None) -> list[Place]:
    """Return the places that ``value`` stands for, of the blocks ``layers``."""
    (places,) = swept_places(model, [value], layers, heads=False)
    return places


def _rows(
    model: Standardized,
    ids: list[list[int]],
    places: list[Place],
    positions: Positions,
    batch_size: int | None,
) -> list[_Rows]:
    """Return the rows at ``positions`` of each place."""
    names = [str(place) for place in places]
    found = model.collect(ids, dict.fromkeys(names, positions), batch_size=batch_size)
    kept: list[Any] = [found[name] for name in names]
    return [
        _Rows(own.rows, own.offsets.diff().tolist())
        if isinstance(own, Ragged)
        else _Rows(own, [1] * len(ids))
        for own in kept
    ]


def _directions(vectors: list[Tensor], places: list[Place]) -> Directions:
    """Return one vector for each place as directions."""
    layers = [place.layer for place in places if place.layer is not None]
    return Directions(torch.stack(vectors).float(), [str(place) for place in places], layers)
