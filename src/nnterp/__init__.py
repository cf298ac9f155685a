"""One vocabulary for the inside of every decoder, on transformers and on vLLM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once: `torch.load` builds these only where they have been named to it.
from nnterp.collecting.collected import Collected, Ragged

if TYPE_CHECKING:
    from nnterp.advice.known_wrong import KnownWrongWarning
    from nnterp.advice.measured import UnverifiedWarning
    from nnterp.engines.registry import register_family, register_value
    from nnterp.engines.runs import Run
    from nnterp.engines.transformers.model import StandardizedTransformer
    from nnterp.engines.vllm.client.model import StandardizedVLLM
    from nnterp.errors import (
        CheckpointNotFound,
        MissingMainGuard,
        Unavailable,
        UnservableCheckpoint,
        UnsupportedFamily,
    )
    from nnterp.records.edits import (
        Add,
        Edit,
        ProjectOut,
        Replace,
        Scale,
        SetCoefficient,
        Zero,
    )
    from nnterp.records.reads import Read
    from nnterp.vocabulary.support import Support
    from nnterp.vocabulary.values import VALUES, Value

__version__ = "0.1.0"

# Imported on first use: a program that names one engine does not pay for the other.
_HOMES = {
    "StandardizedTransformer": ".engines.transformers.model",
    "StandardizedVLLM": ".engines.vllm.client.model",
    "CheckpointNotFound": ".errors",
    "KnownWrongWarning": ".advice.known_wrong",
    "MissingMainGuard": ".errors",
    "Unavailable": ".errors",
    "UnservableCheckpoint": ".errors",
    "UnsupportedFamily": ".errors",
    "UnverifiedWarning": ".advice.measured",
    "Support": ".vocabulary.support",
    "VALUES": ".vocabulary.values",
    "Value": ".vocabulary.values",
    "register_family": ".engines.registry",
    "register_value": ".engines.registry",
    "Add": ".records.edits",
    "Edit": ".records.edits",
    "ProjectOut": ".records.edits",
    "Read": ".records.reads",
    "Replace": ".records.edits",
    "Run": ".engines.runs",
    "Scale": ".records.edits",
    "SetCoefficient": ".records.edits",
    "Zero": ".records.edits",
}

__all__ = [
    "VALUES",
    "Add",
    "CheckpointNotFound",
    "Collected",
    "Edit",
    "KnownWrongWarning",
    "MissingMainGuard",
    "ProjectOut",
    "Ragged",
    "Read",
    "Replace",
    "Run",
    "Scale",
    "SetCoefficient",
    "StandardizedTransformer",
    "StandardizedVLLM",
    "Support",
    "Unavailable",
    "UnservableCheckpoint",
    "UnsupportedFamily",
    "UnverifiedWarning",
    "Value",
    "Zero",
    "register_family",
    "register_value",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
