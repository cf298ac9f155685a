"""Replays CUDA graphs with breaks at the taps only in steps in which somebody reads them.

A replayed graph runs no Python, so nnsight records each tap as a break in it, and a graph with
breaks is launched in pieces. In most steps of an engine nobody reads a tap: for those, every graph
is recorded a second time, without breaks, and replayed whole.
"""

from __future__ import annotations

from typing import Any


class TwofoldGraphs:
    """Switches the engine's CUDA graphs between recordings with and without breaks at the taps.

    One recording takes the place of the other in vLLM's own wrapper, which keeps them by the shape
    of the batch.
    """

    def __init__(self) -> None:
        from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

        self._recordings: list[tuple[Any, dict[bool, Any]]] = [
            (wrapper, {True: {}, False: {}}) for wrapper in BreakableCUDAGraphWrapper._all_instances
        ]

    def use(self, broken: bool) -> None:
        """Make the next forward replay, or record, the graphs with breaks or those without.

        Args:
            broken: Whether it is those with breaks.
        """
        for wrapper, entries in self._recordings:
            wrapper.entries = entries[broken]
