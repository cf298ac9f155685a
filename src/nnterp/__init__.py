"""One vocabulary for the inside of every decoder, on transformers and on vLLM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once: `torch.load` builds these only where they have been named to it.
from .collecting.collected import Collected, Ragged

if TYPE_CHECKING:
    from .errors import (
        CheckpointNotFound,
        MissingMainGuard,
        Unavailable,
        UnservableCheckpoint,
        UnsupportedFamily,
    )
    from .known_wrong import KnownWrongWarning
    from .measured import UnverifiedWarning
    from .transformer import StandardizedTransformer
    from .vllm.model import StandardizedVLLM

__version__ = "0.1.0"

# Imported on first use: a program that names one engine does not pay for the other.
_HOMES = {
    "StandardizedTransformer": ".transformer",
    "StandardizedVLLM": ".vllm.model",
    "CheckpointNotFound": ".errors",
    "KnownWrongWarning": ".known_wrong",
    "MissingMainGuard": ".errors",
    "Unavailable": ".errors",
    "UnservableCheckpoint": ".errors",
    "UnsupportedFamily": ".errors",
    "UnverifiedWarning": ".measured",
}

__all__ = [
    "CheckpointNotFound",
    "Collected",
    "KnownWrongWarning",
    "MissingMainGuard",
    "Ragged",
    "StandardizedTransformer",
    "StandardizedVLLM",
    "Unavailable",
    "UnservableCheckpoint",
    "UnsupportedFamily",
    "UnverifiedWarning",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
