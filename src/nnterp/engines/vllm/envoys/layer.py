"""vLLM's decoder blocks.

vLLM fuses each residual add into the norm that follows it, so most of its blocks pass
the stream around as two addends; `FusedLayer` is those. A block that adds for itself
passes one tensor, a `SingleLayer`; so does every block of the Transformers backend.
"""

from __future__ import annotations

from nnterp.engines.vllm.envoys.envoy import VLLMEnvoy
from nnterp.sites.choice import Either, takes
from nnterp.sites.fused import FusedInput, FusedOutput
from nnterp.sites.primitive import Argument, Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


class VLLMLayer(VLLMEnvoy):
    """A block, however it passes the residual stream on."""

    #: How the block passes the stream on.
    stream = "one tensor"

    @property
    def is_residual_sum(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return True


class SingleLayer(VLLMLayer):
    """A block that takes and returns the residual stream as one tensor.

    Or as the first of a pair, the second of which is another matter.
    """

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())


class FusedLayer(VLLMLayer):
    """A block that takes and returns the residual stream as two addends."""

    stream = "two addends"

    layer_input = StandardValue(values.LAYER_INPUT, FusedInput())
    layer_output = StandardValue(values.LAYER_OUTPUT, FusedOutput())


class EitherLayer(VLLMLayer):
    """A block of vLLM's own in some releases, with two addends, and transformers' in others."""

    _INPUT = Either(takes("residual"), FusedInput(), Argument("hidden_states"))
    _OUTPUT = Either(takes("residual"), FusedOutput(), Output())

    layer_input = StandardValue(values.LAYER_INPUT, _INPUT)
    layer_output = StandardValue(values.LAYER_OUTPUT, _OUTPUT)

    @property
    def stream(self) -> str:  # type: ignore[override]
        fused = self._INPUT.here(self) is self._INPUT.site
        return (FusedLayer if fused else SingleLayer).stream
