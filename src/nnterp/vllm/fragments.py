"""Whole heads under tensor parallelism.

Each rank's ``Attention`` layer computes its share of the heads. nnsight makes the values
of parallel linear layers whole before a block sees them; the same is done here for what
enters and leaves ``Attention``, so that ``attention_queries`` holds every head on any
number of ranks, and an edit of them reaches the rank that computes with each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from nnsight.modeling.vllm.fragments import VLLMFragments
from nnsight.util import apply
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.layers.attention import Attention, MLAAttention


class HeadFragments(VLLMFragments):
    """nnsight's record of what is one rank's piece, with attention's heads in it.

    Args:
        kv_heads: The key and value heads of a block, over all ranks. Where they are fewer
            than the ranks, vLLM gives several ranks the same one.
    """

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self._kv_heads = kv_heads
        self._kernels: set[str] = set()
        #: Those that take latents, which every rank has whole.
        self._latent: set[str] = set()

    def instrument(self, envoy: Any) -> None:
        super().instrument(envoy)
        kernel = isinstance(envoy._module, (Attention, MLAAttention))
        if kernel and get_tensor_model_parallel_world_size() > 1:
            self._kernels |= {f"{envoy.path}.input", f"{envoy.path}.output"}
            if isinstance(envoy._module, MLAAttention):
                self._latent.add(f"{envoy.path}.input")
            self.enabled = True

    def whole_heads(self, kernel: Attention | MLAAttention) -> tuple[int, int]:
        """The query heads and the key and value heads of ``kernel``'s block, over all ranks."""
        ranks = get_tensor_model_parallel_world_size()
        return kernel.num_heads * ranks, max(1, min(self._kv_heads, kernel.num_kv_heads * ranks))

    def fragmented(self, location: str) -> bool:
        return location in self._kernels or super().fragmented(location)

    def whole(self, location: str, value: Any) -> tuple[Any, Callable[[Any], Any]]:
        if location not in self._kernels:
            return super().whole(location, value)
        return self._each(location, value, _gather), partial(self.split, location)

    def split(self, location: str, whole: Any) -> Any:
        if location not in self._kernels:
            return super().split(location, whole)
        return self._each(location, whole, _own_share)

    def _each(
        self, location: str, value: Any, change: Callable[[torch.Tensor, int], torch.Tensor]
    ) -> Any:
        """``change`` on what enters, ``(query, key, value)``, or leaves, the head outputs."""
        if isinstance(value, torch.Tensor):
            return change(value, 1)
        (query, *keys_and_values), kwargs = value
        if location in self._latent:
            queries = change(query.flatten(1), 1).unflatten(1, (-1, query.shape[-1]))
            return (queries, *keys_and_values), kwargs
        copies = max(1, get_tensor_model_parallel_world_size() // self._kv_heads)
        shared = apply(keys_and_values, lambda tensor: change(tensor, copies), torch.Tensor)
        return (change(query, 1), *shared), kwargs


def _gather(piece: torch.Tensor, copies: int) -> torch.Tensor:
    ranks = get_tensor_model_parallel_world_size()
    pieces = tensor_model_parallel_all_gather(piece.contiguous(), dim=-1).chunk(ranks, dim=-1)
    return torch.cat(pieces[::copies], dim=-1)


def _own_share(whole: torch.Tensor, copies: int) -> torch.Tensor:
    shares = whole.chunk(get_tensor_model_parallel_world_size() // copies, dim=-1)
    return shares[get_tensor_model_parallel_rank() // copies].contiguous()
