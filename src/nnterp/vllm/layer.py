"""vLLM's decoder blocks.

vLLM fuses each residual add into the norm that follows it, so most of its blocks pass
the stream around as two addends; `FusedLayer` is those. A block that adds for itself
passes one tensor, a `SingleLayer`; so does every block of the Transformers backend.
"""

from __future__ import annotations

from .. import values
from ..composed import IfTaken, locations
from ..eproperty import StandardValue
from ..serving import StandardEnvoy
from ..sites import Argument, FusedInput, FusedOutput, Output
from .rows import PrivateRows
from .shared import SharedModule


class Rows(SharedModule, StandardEnvoy):
    """An envoy in vLLM's worker: its values are private copies of the request's rows."""

    serving = PrivateRows()

    def unavailable(self, name: str) -> str | None:
        reason = super().unavailable(name)
        taps = self.interleaver.taps
        if reason is not None or not taps:
            return reason
        needed = locations(getattr(type(self), name).site, self)
        if all(at in taps or not at.endswith((".input", ".output")) for at in needed):
            return None
        return (
            "this engine replays CUDA graphs, which pass its taps only, and it is none of them; "
            "add it to taps=, or load without taps"
        )


class VLLMLayer(Rows):
    """A block, however it passes the residual stream on."""

    #: How the block passes the stream on.
    stream = "one tensor"

    @property
    def sums(self) -> bool:
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

    _INPUT = IfTaken("residual", FusedInput(), Argument("hidden_states"))
    _OUTPUT = IfTaken("residual", FusedOutput(), Output())

    layer_input = StandardValue(values.LAYER_INPUT, _INPUT)
    layer_output = StandardValue(values.LAYER_OUTPUT, _OUTPUT)

    @property
    def stream(self) -> str:  # type: ignore[override]
        fused = self._INPUT.here(self) is self._INPUT.site
        return (FusedLayer if fused else SingleLayer).stream
