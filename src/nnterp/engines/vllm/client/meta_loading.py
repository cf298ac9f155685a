"""Builds vLLM's model without weights, on a host that may have no accelerator."""

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
    """Let vLLM's loader empty an accelerator's memory cache on a host that has no accelerator."""
    if torch.accelerator.is_available():
        yield
        return
    with replaced(torch.accelerator, "empty_cache", lambda: None):
        yield


@cache
def pack_without_values() -> torch.library.Library | None:
    """Let vLLM's CPU build pack experts that have a shape and no values, as they have none here.

    Returns:
        The library with the operator's meta kernel, or None where vLLM has no such operator.
    """
    import vllm._custom_ops

    assert vllm._custom_ops  # which loads the operators
    if not hasattr(torch.ops._C, "prepack_moe_weight"):
        return None
    library = torch.library.Library("_C", "IMPL")
    library.impl("prepack_moe_weight", lambda weight, packed, isa: None, "Meta")
    return library


@contextlib.contextmanager
def zeros_from_meta() -> Iterator[None]:
    """Make ``Tensor.cpu`` return zeros for a meta tensor, while entered.

    A constructor may copy a tensor that it has just built to the host, to read its values. nnsight
    serves ``Tensor.tolist`` on a meta tensor; Apertus reads the constants of its activation with
    ``Tensor.cpu``.
    """
    real = Tensor.cpu

    def cpu(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if tensor.is_meta:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        return real(tensor, *args, **kwargs)

    with replaced(Tensor, "cpu", cpu):
        yield
