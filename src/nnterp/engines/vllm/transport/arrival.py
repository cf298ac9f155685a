"""Pickles a block's payload as a call of the worker's function that rebuilds the block.

The client imports nothing of the worker, so it names the function, as it names the worker's class
to vLLM.
"""

from __future__ import annotations

import importlib
from typing import Any

_REBUILDER = "nnterp.engines.vllm.worker.arrival"


class Arriving:
    """Pickles as a call, made in the worker, of its ``rebuild``.

    Args:
        *parts: The arguments of `nnterp.engines.vllm.worker.arrival.rebuild`.
    """

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._parts


def _rebuild(*parts: Any) -> Any:
    """Import the worker's module, and call its ``rebuild`` with ``parts``."""
    return importlib.import_module(_REBUILDER).rebuild(*parts)
