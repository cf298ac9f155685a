"""Serves the values of a transformers decoder block."""

from __future__ import annotations

from nnterp.engines.transformers.envoys.envoy import TransformersEnvoy
from nnterp.sites.primitive import Argument, Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


class Layer(TransformersEnvoy):
    """`Layer` is the envoy of a block that takes and returns the residual stream."""

    #: How the block passes the residual stream on.
    stream = "one tensor"

    @property
    def is_residual_sum(self) -> bool:
        """Return whether what leaves is the sum of what entered and what the block's parts add."""
        return True

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())
