"""Runs modules of a model beside its forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nnsight.intervention.interleaver import Interleaver


@contextlib.contextmanager
def without_interleaving(interleaver: Interleaver) -> Iterator[None]:
    """Hide modules called in this context, which are no steps of the forward, from all blocks."""
    interleaving, interleaver.interleaving = interleaver.interleaving, False
    try:
        yield
    finally:
        interleaver.interleaving = interleaving
