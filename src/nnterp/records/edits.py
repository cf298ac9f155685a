"""Defines the edits of values that can be stated as data.

Each kind changes rows ``x`` of a value, ``[rows, hidden]``, or where it has heads ``[rows, heads,
width]``, and has an `Affine` form: ``x`` without its component along a direction, times a number,
plus a vector. So an engine that can apply that form can apply every kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from nnterp.errors import did_you_mean
from nnterp.records.positions import Positions, Steps
from nnterp.records.text import plain, steps_of, steps_text

#: A vector, or the name under which a model has one.
Vector = Tensor | str

#: Edits by the kind that their JSON names.
KINDS: dict[str, type[Edit]] = {}


class Affine(NamedTuple):
    """An `Affine` is an edit as ``scale * (x - (x . direction) direction) + add``.

    Where ``scale`` is zero, the edited rows are ``add``, whatever ``x`` holds.

    Attributes:
        scale: The factor.
        add: ``[..., width]``, or None for zeros.
        direction: ``[..., width]``, of length 1 along the last axis, or None.
    """

    scale: float = 1.0
    add: Tensor | None = None
    direction: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Edit:
    """An `Edit` changes a value at some positions; this is the base of its kinds.

    A vector is ``[width]``, for every edited row, or ``[positions, width]``, one for each. Where
    the value has heads, it is the same for every edited head, or ``[heads, width]`` or
    ``[positions, heads, width]``, with one for each.

    Attributes:
        value: The value's name, such as ``layers.3.layer_output``; ``*`` stands for every block.
        positions: The positions to edit: ``"all"``, ``"prompt"``, ``"generated"``, ``"last"``,
            the last of each step, or a position of the prompt. For one prompt also several
            positions, or a mask of bools; for several prompts, one of these for each.
        steps: The steps of the generation to edit them in, counted from the prompt's: one,
            several, a slice, or None for all.
        heads: Where the value has heads, those to edit: one, several, or None for all.
    """

    #: What the edit is called in JSON.
    kind: ClassVar[str]

    #: The field that holds a vector, if the kind has one.
    vector_field: ClassVar[str | None] = None

    value: str
    positions: Positions = field(default="all", kw_only=True)
    steps: Steps = field(default=None, kw_only=True)
    heads: int | Sequence[int] | None = field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        KINDS[cls.kind] = cls

    @property
    def vector_given(self) -> Vector | None:
        """Return the edit's vector as it was given, or None for a kind that has none."""
        return None if self.vector_field is None else getattr(self, self.vector_field)

    def affine(self, vector: Tensor | None) -> Affine:
        """Return the edit's affine form.

        Args:
            vector: The edit's vector, in floating point.

        Raises:
            ValueError: A direction is zero or not finite.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the record as what `json` writes; a tensor becomes lists of numbers."""
        written = {
            own.name: plain(getattr(self, own.name)) for own in fields(self) if own.name != "steps"
        }
        return {"kind": self.kind, **written, "steps": steps_text(self.steps)}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Edit:
        """Return the record that `to_json` wrote; lists of numbers become float32 tensors.

        Raises:
            ValueError: There is no edit of its kind.
            TypeError: It has a field that its kind has not, or lacks one.
        """
        given = dict(record)
        kind = given.pop("kind", None)
        if kind not in KINDS:
            raise ValueError(
                f"{kind!r} is no kind of edit{did_you_mean(str(kind), KINDS)}; there are "
                f"{', '.join(KINDS)}"
            )
        made = KINDS[kind]
        name = made.vector_field
        if name is not None and isinstance(given.get(name), list):
            given[name] = torch.tensor(given[name], dtype=torch.float32)
        return made(**{**given, "steps": steps_of(given.get("steps"))})


@dataclass(frozen=True, eq=False)
class Add(Edit):
    """An `Add` adds ``factor * vector``.

    Attributes:
        vector: The vector.
        factor: The strength.
    """

    kind: ClassVar[str] = "add"
    vector_field: ClassVar[str | None] = "vector"

    vector: Vector
    factor: float = 1.0

    def affine(self, vector: Tensor | None) -> Affine:
        assert vector is not None
        return Affine(add=vector if self.factor == 1 else self.factor * vector)


@dataclass(frozen=True, eq=False)
class Scale(Edit):
    """A `Scale` multiplies by ``factor``.

    Attributes:
        factor: The factor.
    """

    kind: ClassVar[str] = "scale"

    factor: float

    def affine(self, vector: Tensor | None) -> Affine:
        return Affine(scale=float(self.factor))


@dataclass(frozen=True, eq=False)
class ProjectOut(Edit):
    """A `ProjectOut` removes the component along ``direction``.

    Attributes:
        direction: The direction, of any length but zero.
    """

    kind: ClassVar[str] = "project_out"
    vector_field: ClassVar[str | None] = "direction"

    direction: Vector

    def affine(self, vector: Tensor | None) -> Affine:
        return Affine(direction=_of_length_one(vector))


@dataclass(frozen=True, eq=False)
class SetCoefficient(Edit):
    """A `SetCoefficient` makes the component along ``direction`` of length ``coefficient``.

    Attributes:
        direction: The direction, of any length but zero.
        coefficient: The dot product that the edited rows have with the direction of length 1.
    """

    kind: ClassVar[str] = "set_coefficient"
    vector_field: ClassVar[str | None] = "direction"

    direction: Vector
    coefficient: float

    def affine(self, vector: Tensor | None) -> Affine:
        unit = _of_length_one(vector)
        return Affine(add=self.coefficient * unit, direction=unit)


@dataclass(frozen=True, eq=False)
class Replace(Edit):
    """A `Replace` puts ``rows`` in the place of what is there.

    Attributes:
        rows: One row for every edited position, or one for each, in order.
    """

    kind: ClassVar[str] = "replace"
    vector_field: ClassVar[str | None] = "rows"

    rows: Vector

    def affine(self, vector: Tensor | None) -> Affine:
        return Affine(scale=0.0, add=vector)


@dataclass(frozen=True, eq=False)
class Zero(Edit):
    """A `Zero` puts zeros in the place of what is there."""

    kind: ClassVar[str] = "zero"

    def affine(self, vector: Tensor | None) -> Affine:
        return Affine(scale=0.0)


def _of_length_one(vector: Tensor | None) -> Tensor:
    """Return ``vector``, ``[..., width]``, divided by its length along the last axis."""
    assert vector is not None
    wide = vector.to(torch.promote_types(vector.dtype, torch.float32))
    length = wide.norm(dim=-1, keepdim=True)
    if not bool((length > 0).all() and length.isfinite().all()):
        raise ValueError("a direction is zero or not finite, and so points nowhere")
    return wide / length
