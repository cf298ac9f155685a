"""Building vLLM's model without weights, on a host that may have no accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nnterp.engines.vllm.replaced import replaced


@contextlib.contextmanager
def without_accelerator() -> Iterator[None]:
    """Let vLLM's loader tidy an accelerator's memory on a host that has none."""
    if torch.accelerator.is_available():
        yield
        return
    with replaced(torch.accelerator, "empty_cache", lambda: None):
        yield


@cache
def pack_without_values() -> torch.library.Library | None:
    """Let vLLM's CPU build pack experts that have a shape and no values, as here they have."""
    import vllm._custom_ops

    assert vllm._custom_ops  # which loads the operators
    if not hasattr(torch.ops._C, "prepack_moe_weight"):
        return None
    library = torch.library.Library("_C", "IMPL")
    library.impl("prepack_moe_weight", lambda weight, packed, isa: None, "Meta")
    return library


@contextlib.contextmanager
def zeros_from_meta() -> Iterator[None]:
    """Let a constructor take a tensor it just built to the host, from a device without values.

    nnsight lets it read one as a list; Apertus reads the constants of its activation so.
    """
    real = Tensor.cpu

    def cpu(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if tensor.is_meta:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        return real(tensor, *args, **kwargs)

    with replaced(Tensor, "cpu", cpu):
        yield
