"""Running modules of a model beside its forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nnsight.intervention.interleaver import Interleaver


@contextlib.contextmanager
def without_interleaving(interleaver: Interleaver) -> Iterator[None]:
    """Have the modules that are called be no steps of the forward: no block sees them."""
    interleaving, interleaver.interleaving = interleaver.interleaving, False
    try:
        yield
    finally:
        interleaver.interleaving = interleaving
