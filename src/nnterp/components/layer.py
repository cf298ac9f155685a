"""A transformers decoder block."""

from __future__ import annotations

from .. import values
from ..eproperty import StandardValue
from ..serving import StandardEnvoy
from ..sites import Argument, Output
from .live import LiveTensors


class Live(StandardEnvoy):
    """An envoy of a transformers module."""

    serving = LiveTensors()


class Layer(Live):
    """A block that takes and returns the residual stream."""

    #: How the block passes the stream on.
    stream = "one tensor"

    @property
    def sums(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return True

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())
