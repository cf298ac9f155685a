"""Envoys that travel by name.

A block rides to vLLM's worker in its request, with the envoys in its scope. nnsight
pickles the whole envoy tree for each; but the worker builds the same tree once, so here
an envoy is sent as the name of its twin there.
"""

from __future__ import annotations

from typing import Any

from nnsight.intervention.interleaver import Interleaver

from nnterp.engines.vllm.transport.keys import persistent_id


class ByNameInterleaver(Interleaver):
    """The client's interleaver: it names each envoy as the tree is built.

    Attributes:
        taps: The locations that an engine on CUDA graphs serves; empty where all are.
    """

    taps: frozenset[str] = frozenset()

    def instrument(self, envoy: Any) -> None:
        super().instrument(envoy)
        envoy._persistent_id = persistent_id(envoy.path)
