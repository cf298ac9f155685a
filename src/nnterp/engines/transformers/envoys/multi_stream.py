"""Serves blocks between which several streams pass.

Each half of such a block reads a mix of the streams, and its output is added to every stream with
a weight of that stream's own, while the streams are mixed or scaled.
"""

from __future__ import annotations

from nnterp.engines.transformers.envoys.layer import Layer
from nnterp.vocabulary import values


class MultiStreamLayer(Layer):
    """`MultiStreamLayer` is the envoy of a block that takes and returns several streams."""

    stream = "several streams"

    @property
    def is_residual_sum(self) -> bool:
        """Return False: the streams are mixed or scaled between entering and leaving."""
        return False

    def unavailable(self, name: str) -> str | None:
        if name not in (values.LAYER_INPUT.name, values.LAYER_OUTPUT.name):
            return super().unavailable(name)
        return "several streams pass between blocks, and none of them is the residual stream"
