"""Checks what a caller of `collect` asks for, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from nnterp.collecting.selections import Apply, Kept, Selection, selection
from nnterp.errors import Unavailable
from nnterp.records.positions import Length
from nnterp.records.reads import Read
from nnterp.vocabulary import values
from nnterp.vocabulary.names import Place, places


class ServedModel(Protocol):
    """`ServedModel` is what these checks need of a model, of either class."""

    engine_adapter: Any

    @property
    def num_layers(self) -> int:
        """Return the number of decoder blocks."""

    def host_of(self, value: values.Value, layer: int) -> Any:
        """Return the envoy that serves ``value`` for block ``layer``."""

    def require_declared(self, place: Place, use: Literal["edits", "reads"]) -> None:
        """Raise `Unavailable` where the engine's compiled forward lacks ``place`` for ``use``."""


def wanted_places(
    model: ServedModel, reads: Iterable[Read], lengths: Sequence[Length]
) -> dict[Place, Selection]:
    """Return the selection at each place that ``reads`` name, in the order of the forward.

    Where two name one place, the later is meant.

    Args:
        model: The model.
        reads: What to keep.
        lengths: The length of each prompt's sequence.

    Raises:
        Unavailable: This checkpoint or engine does not serve one of the values.
        ValueError: A name is no value's, or positions are not valid.
        IndexError: A name's block, or a position in a prompt, does not exist.
        TypeError: Positions are of no kind that `selection` takes.
    """
    found: dict[Place, Selection] = {}
    for read in reads:
        if not isinstance(read, Read):
            raise TypeError(f"reads are a list of Read, and this is none: {read!r}")
        kept = selection(read.positions, lengths, read.steps)
        for place in places(read.value, model.num_layers):
            _require(model, place, kept)
            found[place] = kept
    return {place: found[place] for place in in_order(found, model.num_layers)}


def in_order(at: Iterable[Place], num_layers: int) -> list[Place]:
    """Return the places ``at``, in the order in which a forward reaches them."""
    return sorted(at, key=lambda place: _when(place, num_layers))


def require_served(model: ServedModel, place: Place) -> Any:
    """Return the envoy that serves ``place``.

    Raises:
        Unavailable: No envoy does; the message says why.
    """
    host = model.host_of(place.value, place.layer or 0)
    if not hasattr(type(host), place.value.name):
        raise Unavailable(f"{place}: this model's blocks do not serve it")
    reason = host.unavailable(place.value.name)
    if reason is not None:
        raise Unavailable(f"{place}: {reason}")
    return host


def _require(model: ServedModel, place: Place, kept: Selection) -> None:
    """Refuse ``place`` where it is not served, or not at the positions that ``kept`` selects."""
    value = place.value
    require_served(model, place)
    model.require_declared(place, "reads")
    if isinstance(kept, Apply):
        return
    if "key" in value.axes:
        raise ValueError(
            f"{place} has a row and a column a token, so what to keep of it takes a function, as "
            f"in {{{str(place)!r}: lambda value: value[0, :, -1, 0]}}"
        )
    narrow = (
        value.token_axis is None or value.layout_on(model.engine_adapter.engine) != value.layout
    )
    if narrow and not (isinstance(kept, Kept) and kept.is_last):
        raise ValueError(f"{place} is served for the last position only; ask for 'last'")


def _when(place: Place, num_layers: int) -> tuple[int, int]:
    """Return a key that sorts places in the order a forward reaches them."""
    order = list(values.VALUES)
    when = order.index(place.value.name)
    if place.layer is not None:
        return place.layer, when
    return (num_layers if when > order.index("layer_output") else -1), when
