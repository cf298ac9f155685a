"""Defines the errors that users meet; each message ends with what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Unavailable(Exception):
    """Raised for a value this checkpoint, engine or step does not serve; the message says why."""


class UnsupportedFamily(ValueError):
    """Raised for a ``model_type`` without a family, or a family that is not the checkpoint's."""


class CheckpointNotFound(FileNotFoundError):
    """Raised for a model path or id that names no checkpoint this machine can read."""


class UnservableCheckpoint(ValueError):
    """Raised before the engine starts, for a checkpoint whose config the engine refuses."""


class MissingMainGuard(RuntimeError):
    """Raised for an engine built at a script's top level, which its worker would build again."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name nearest to ``name``, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
