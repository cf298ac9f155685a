"""Serves the residual stream at vLLM's decoder blocks.

vLLM fuses each residual add into the norm that follows it, so most of its decoder blocks pass the
stream on as two addends; `FusedLayer` serves those. A block that adds for itself passes on one
tensor, and is a `SingleLayer`; so is every block of the Transformers backend.
"""

from __future__ import annotations

from nnterp.engines.vllm.envoys.envoy import VLLMEnvoy
from nnterp.sites.choice import Either, takes
from nnterp.sites.fused import FusedInput, FusedOutput
from nnterp.sites.primitive import Argument, Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


class VLLMLayer(VLLMEnvoy):
    """Serves a decoder block, however it passes the residual stream on."""

    #: How the block passes the stream on.
    stream = "one tensor"

    @property
    def is_residual_sum(self) -> bool:
        """Return whether the block's output is its input plus what the block's parts add to it."""
        return True


class SingleLayer(VLLMLayer):
    """Serves a decoder block that takes and returns the residual stream as one tensor.

    The stream may also be the first of a pair, the second of which is something else.
    """

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())


class FusedLayer(VLLMLayer):
    """Serves a decoder block that takes and returns the residual stream as two addends."""

    stream = "two addends"

    layer_input = StandardValue(values.LAYER_INPUT, FusedInput())
    layer_output = StandardValue(values.LAYER_OUTPUT, FusedOutput())


class EitherLayer(VLLMLayer):
    """Serves a decoder block that is vLLM's own in some releases, and transformers' in others.

    vLLM's own takes and returns two addends, transformers' one tensor.
    """

    _INPUT = Either(takes("residual"), FusedInput(), Argument("hidden_states"))
    _OUTPUT = Either(takes("residual"), FusedOutput(), Output())

    layer_input = StandardValue(values.LAYER_INPUT, _INPUT)
    layer_output = StandardValue(values.LAYER_OUTPUT, _OUTPUT)

    @property
    def stream(self) -> str:  # type: ignore[override]
        """Return how the decoder block of the installed release passes the stream on."""
        fused = self._INPUT.here(self) is self._INPUT.site
        return (FusedLayer if fused else SingleLayer).stream
