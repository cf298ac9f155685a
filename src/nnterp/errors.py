"""The errors a user meets, each ending with what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Unavailable(Exception):
    """A value this checkpoint, engine or step does not serve; the message says why."""


class UnsupportedFamily(ValueError):
    """A ``model_type`` that nnterp has no family for, or a family that is not the checkpoint's."""


class CheckpointNotFound(FileNotFoundError):
    """A model path or id that names no checkpoint this machine can read."""


class UnservableCheckpoint(ValueError):
    """A checkpoint whose config the engine refuses, found before the engine starts."""


class MissingMainGuard(RuntimeError):
    """An engine built at a script's top level, which its own worker would build again."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A trailing ``; did you mean 'x'?`` for the known name nearest ``name``, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
