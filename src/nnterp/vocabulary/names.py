"""Finds values by their names as text, such as ``layers.12.self_attn.attention_output``.

In a trace a value is an attribute. Where values are requested beforehand, they are named by text
made of the same words. ``*`` stands for every block.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nnterp.errors import did_you_mean
from nnterp.vocabulary.values import VALUES, Value

_NAME = re.compile(r"(?:layers\.(?P<layer>\*|-?\d+)\.)?(?P<rest>[\w.]+)")


class Place(NamedTuple):
    """A `Place` is one value of one block, or of the model as a whole.

    Attributes:
        value: The vocabulary row.
        layer: The block's index; None for a value of the model.
    """

    value: Value
    layer: int | None

    def __str__(self) -> str:
        return _path(self.value, "" if self.layer is None else str(self.layer))


def places(name: str, num_layers: int) -> list[Place]:
    """Return the places that ``name`` stands for, in the order a forward reaches them.

    Args:
        name: Such as ``logits``, ``layers.3.layer_output``, ``layers.*.mlp.mlp_output``.
        num_layers: The number of blocks in the model.

    Raises:
        ValueError: ``name`` names no value.
        IndexError: ``name`` names a block that does not exist.
    """
    match = _NAME.fullmatch(name)
    layer, rest = (match["layer"], match["rest"]) if match else (None, name)
    value = VALUES.get(rest.rpartition(".")[2])
    if value is None or (layer is None) != (value.host == "model") or name != _path(value, layer):
        known = [_path(known, layer or "*") for known in VALUES.values()]
        raise ValueError(
            f"{name!r} names no value{did_you_mean(name, known)}; a value of block 3 is "
            f"{_path(VALUES['layer_output'], '3')!r} or {_path(VALUES['mlp_output'], '3')!r}, of "
            f"every block {_path(VALUES['layer_output'], '*')!r}, of the model 'logits'"
        )
    if layer is None:
        return [Place(value, None)]
    if layer == "*":
        return [Place(value, index) for index in range(num_layers)]
    index = int(layer)
    if not -num_layers <= index < num_layers:
        raise IndexError(f"{name!r}: there is no block {index}: this model has {num_layers}")
    return [Place(value, index % num_layers)]


def _path(value: Value, layer: str | None) -> str:
    """Return the name of ``value`` in block ``layer``, which a value of the model ignores."""
    if value.host == "model":
        return value.name
    host = "" if value.host == "layer" else f"{value.host}."
    return f"layers.{layer}.{host}{value.name}"
