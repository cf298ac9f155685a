"""vLLM's decoder blocks.

vLLM fuses each residual add into the norm that follows it, so most of its blocks pass
the stream around as two addends; `FusedLayer` is those. A block that adds for itself
passes one tensor, a `SingleLayer`; so does every block of the Transformers backend.
"""

from __future__ import annotations

from .. import values
from ..eproperty import StandardEnvoy, StandardValue
from ..sites import Argument, FusedInput, FusedOutput, Output
from .rows import PrivateRows
from .shared import SharedModule


class Rows(SharedModule, StandardEnvoy):
    """An envoy in vLLM's worker: its values are private copies of the request's rows."""

    serving = PrivateRows()


class SingleLayer(Rows):
    """A block that takes and returns the residual stream as one tensor."""

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())


class FusedLayer(Rows):
    """A block that takes and returns the residual stream as two addends."""

    layer_input = StandardValue(values.LAYER_INPUT, FusedInput())
    layer_output = StandardValue(values.LAYER_OUTPUT, FusedOutput())
