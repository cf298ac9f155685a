"""A block's way into the worker: a call, by name, of what rebuilds it there.

The client imports nothing of the worker, so it names the function, as it names the worker's
class to vLLM.
"""

from __future__ import annotations

import importlib
from typing import Any

_REBUILDER = "nnterp.engines.vllm.worker.arrival"


class Arriving:
    """Pickles into a call, in the worker, of its ``rebuild`` with these ``parts``."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._parts


def _rebuild(*parts: Any) -> Any:
    return importlib.import_module(_REBUILDER).rebuild(*parts)
