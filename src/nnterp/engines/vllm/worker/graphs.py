"""CUDA graphs that are broken open only where and when somebody looks.

A replayed graph runs no Python, so nnsight records each tap as a break in it, and a graph
with breaks is launched in pieces. Most steps of an engine have nobody looking: for those,
every graph is recorded a second time, without breaks, and replayed whole.
"""

from __future__ import annotations

from typing import Any


class TwofoldGraphs:
    """The engine's graphs, recorded with and without breaks at the taps.

    One recording takes the place of the other in vLLM's own wrapper, which keeps them by
    the shape of the batch.
    """

    def __init__(self) -> None:
        from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

        self._recordings: list[tuple[Any, dict[bool, Any]]] = [
            (wrapper, {True: {}, False: {}}) for wrapper in BreakableCUDAGraphWrapper._all_instances
        ]

    def use(self, broken: bool) -> None:
        """Have the next forward replay, or record, the graphs with breaks or those without."""
        for wrapper, entries in self._recordings:
            wrapper.entries = entries[broken]
