"""Defines the base class of every envoy of a transformers module."""

from __future__ import annotations

from nnterp.engines.transformers.envoys.adapter import LiveTensors
from nnterp.tracing.envoy import StandardEnvoy


class TransformersEnvoy(StandardEnvoy):
    """A `TransformersEnvoy` is an envoy of a transformers module."""

    engine_adapter = LiveTensors()
