"""Says which blocks of a model are meant by what a caller may give for layers."""

from __future__ import annotations

from collections.abc import Iterable

from nnterp.engines.standardized import Standardized


def blocks(model: Standardized, layers: int | Iterable[int] | None) -> list[int]:
    """Return the indices of ``layers``, counted from the first, in the order given.

    Args:
        model: The model.
        layers: A block's index, or several; negative counts from the last. None stands for all.

    Raises:
        ValueError: There are none, or one is named twice.
        IndexError: One does not exist.
    """
    count = model.num_layers
    given = range(count) if layers is None else [layers] if isinstance(layers, int) else layers
    chosen = []
    for layer in given:
        if not -count <= layer < count:
            raise IndexError(f"there is no block {layer}: this model has {count}")
        chosen.append(layer % count)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"layers are blocks, one at least and none twice, not {chosen}")
    return chosen
