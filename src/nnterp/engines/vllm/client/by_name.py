"""Pickles envoys by name, so that a request does not carry the envoy tree.

A request carries its block to vLLM's worker, with the envoys in the block's scope. nnsight pickles
the whole envoy tree for each block; but the worker builds the same tree once, so here an envoy is
pickled as a persistent id, which names the envoy at the same path in the worker's tree.
"""

from __future__ import annotations

from typing import Any

from nnsight.intervention.interleaver import Interleaver

from nnterp.engines.vllm.transport.keys import persistent_id


class ByNameInterleaver(Interleaver):
    """Gives each envoy of the client's tree its persistent id as the tree is built.

    Attributes:
        taps: The locations that an engine on CUDA graphs serves; empty where all are served.
    """

    taps: frozenset[str] = frozenset()

    def instrument(self, envoy: Any) -> None:
        super().instrument(envoy)
        envoy._persistent_id = persistent_id(envoy.path)
