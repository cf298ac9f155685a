"""A transformers decoder block."""

from __future__ import annotations

from nnterp.engines.transformers.envoys.envoy import TransformersEnvoy
from nnterp.sites.primitive import Argument, Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


class Layer(TransformersEnvoy):
    """A block that takes and returns the residual stream."""

    #: How the block passes the stream on.
    stream = "one tensor"

    @property
    def is_residual_sum(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return True

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())
