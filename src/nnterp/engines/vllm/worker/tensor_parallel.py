"""Gathers whole attention heads from tensor-parallel ranks, and splits edited ones again.

Each rank's ``Attention`` layer computes its share of the heads. nnsight makes the values of
parallel linear layers whole before a block sees them; the same is done here for what enters and
leaves ``Attention``, so that ``attention_queries`` holds every head on any number of ranks, and an
edit of them reaches the rank that computes with each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.modeling.vllm.fragments import VLLMFragments
from nnsight.util import apply
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.layers.attention import Attention, MLAAttention


class HeadFragments(VLLMFragments):
    """Records which values are one rank's fragment, as nnsight does, and adds attention's heads.

    Args:
        kv_heads: The number of key and value heads over all ranks, for blocks whose attention does
            not say how many it has. Where they are fewer than the ranks, vLLM gives several ranks
            the same one.
    """

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self._kv_heads = kv_heads
        #: For the location of each kernel's input and output, how many ranks have the same key
        #: heads.
        self._kernels: dict[str, int] = {}
        #: The inputs of kernels that take latents, which every rank has whole.
        self._latent: set[str] = set()

    def instrument(self, envoy: Any) -> None:
        super().instrument(envoy)
        kernel = envoy._module
        ranks = get_tensor_model_parallel_world_size()
        if isinstance(kernel, (Attention, MLAAttention)) and ranks > 1:
            around = None if envoy.parent is None else envoy.parent._module
            # Where decoder blocks differ, each attention module knows how many heads it has.
            total = getattr(around, "total_num_kv_heads", self._kv_heads)
            copies = max(1, ranks * kernel.num_kv_heads // total)
            self._kernels |= {f"{envoy.path}.input": copies, f"{envoy.path}.output": copies}
            if isinstance(kernel, MLAAttention):
                self._latent.add(f"{envoy.path}.input")
            self.enabled = True

    def whole_heads(self, kernel: Envoy) -> tuple[int, int]:
        """Return the numbers of query heads and of key and value heads of a kernel, over all ranks.

        Args:
            kernel: The envoy of an ``Attention`` or ``MLAAttention`` layer.
        """
        ranks = get_tensor_model_parallel_world_size()
        own: Any = kernel._module
        copies = self._kernels[f"{kernel.path}.input"]
        return own.num_heads * ranks, own.num_kv_heads * ranks // copies

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
        """Apply ``change`` to what enters, ``(query, key, value)``, or leaves, the head outputs.

        Latents, which every rank has whole, are left as they are.
        """
        if isinstance(value, torch.Tensor):
            return change(value, 1)
        (query, *keys_and_values), kwargs = value
        if location in self._latent:
            queries = change(query.flatten(1), 1).unflatten(1, (-1, query.shape[-1]))
            return (queries, *keys_and_values), kwargs
        copies = self._kernels[location]
        shared = apply(keys_and_values, lambda tensor: change(tensor, copies), torch.Tensor)
        return (change(query, 1), *shared), kwargs


def _gather(piece: torch.Tensor, copies: int) -> torch.Tensor:
    """Return ``[..., heads * width]`` of all ranks from each one's ``piece``, each head once."""
    ranks = get_tensor_model_parallel_world_size()
    pieces = tensor_model_parallel_all_gather(piece.contiguous(), dim=-1).chunk(ranks, dim=-1)
    return torch.cat(pieces[::copies], dim=-1)


def _own_share(whole: torch.Tensor, copies: int) -> torch.Tensor:
    """Return this rank's ``[..., heads * width]`` of ``whole``, which has all ranks' heads."""
    shares = whole.chunk(get_tensor_model_parallel_world_size() // copies, dim=-1)
    return shares[get_tensor_model_parallel_rank() // copies].contiguous()
