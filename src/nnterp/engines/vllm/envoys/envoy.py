"""Defines the base class of every envoy of a vLLM module."""

from __future__ import annotations

from nnterp.engines.vllm.envoys.adapter import PrivateRows
from nnterp.engines.vllm.envoys.protected import ProtectedEnvoy
from nnterp.sites.two_part import locations
from nnterp.tracing.envoy import StandardEnvoy


class VLLMEnvoy(ProtectedEnvoy, StandardEnvoy):
    """Serves the values of a vLLM module, in the worker as private copies of the request's rows."""

    engine_adapter = PrivateRows()

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
