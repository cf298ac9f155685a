"""Latent attention on vLLM.

A token's keys and values are all made of one *latent*, and the latent is what vLLM's
kernel is handed and caches, with the rotated features that every head's keys share.
Queries and head outputs pass as elsewhere. Keys and values exist inside the kernel, on
prefill at most, so they are made of the latents again, by the layer's own projection, and
read only; scores and pattern follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from torch import Tensor

from .. import values
from ..eproperty import StandardValue
from ..sites import Argument, Output, Reading, Site
from .attention import KERNEL_VALUES, masked_scores, pattern
from .layer import Rows

#: Where an attention module keeps vLLM's ``MLAAttention`` layer.
KERNEL = "mla_attn.mla_attn"

QUERIES = Argument("q", of=KERNEL)
LATENTS = Argument("kv_c_normed", of=KERNEL)
SHARED_FEATURES = Argument("k_pe", of=KERNEL)

#: The values that the latents are projected for.
_REBUILT = tuple(
    value
    for value in KERNEL_VALUES
    if value not in (values.ATTENTION_QUERIES, values.ATTENTION_HEAD_OUTPUTS)
)


@dataclass(frozen=True)
class Rebuilt:
    """Keys or values, ``[tokens, heads, width]``, made of the latents entering the kernel."""

    keys: bool
    read_only = (
        "it is rebuilt from each token's latent, which is all that the engine holds of it; edit "
        "the queries, the head outputs or what enters the block instead"
    )

    def location(self, host: Envoy) -> str:
        return LATENTS.location(host)

    def read(self, host: Any, raw: Any) -> Reading:
        kernel = host.kernel
        rows = host.expanded(LATENTS.get(host, raw))
        own, held = rows.split([kernel.qk_nope_head_dim, kernel.v_head_dim], dim=-1)
        if not self.keys:
            return Reading(held, fresh=True)
        shared = SHARED_FEATURES.get(host, raw).expand(-1, rows.shape[1], -1)
        return Reading(torch.cat([own, shared], dim=-1), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError(self.read_only)


KEYS = Rebuilt(keys=True)


@dataclass(frozen=True)
class RecomputedLatent:
    """Scores or pattern, recomputed from the queries and the latents entering the kernel."""

    normalized: bool

    def location(self, host: Envoy) -> str:
        return QUERIES.location(host)

    def read(self, host: Any, raw: Any) -> Reading:
        queries = QUERIES.get(host, raw)
        keys = KEYS.read(host, raw).tensor
        heads = [rows.transpose(0, 1).float() for rows in (queries, keys)]
        scores = masked_scores(host.kernel, *heads)
        wanted = pattern(host.kernel, scores) if self.normalized else scores
        return Reading(wanted.to(queries.dtype)[None], fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("the kernel computes scores and pattern for itself")


@dataclass(frozen=True)
class Halved:
    """Queries or keys whose rotated features the kernel has in pairs, served in halves.

    In pairs, a feature and the one it is rotated with are neighbours; in halves, they are
    half the rotated width apart.
    """

    site: Site

    @property
    def read_only(self) -> str | None:
        return getattr(self.site, "read_only", None)

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Any, raw: Any) -> Reading:
        tensor = self.site.read(host, raw).tensor
        return Reading(tensor[..., self._order(host, tensor)], fresh=True)

    def write(self, host: Any, raw: Any, tensor: Tensor) -> Any:
        return self.site.write(host, raw, tensor[..., self._order(host, tensor).argsort()])

    @staticmethod
    def _order(host: Any, tensor: Tensor) -> Tensor:
        """For each feature served, which one of the kernel's it is."""
        unrotated = host.kernel.qk_nope_head_dim
        features = torch.arange(tensor.shape[-1], device=tensor.device)
        rotated = features[unrotated:]
        return torch.cat([features[:unrotated], rotated[0::2], rotated[1::2]])


class LatentAttention(Rows):
    """An attention module around vLLM's ``MLAAttention`` layer."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, QUERIES)
    attention_keys = StandardValue(values.ATTENTION_KEYS, KEYS)
    attention_values = StandardValue(values.ATTENTION_VALUES, Rebuilt(keys=False))
    attention_scores = StandardValue(values.ATTENTION_SCORES, RecomputedLatent(normalized=False))
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES, RecomputedLatent(normalized=True)
    )
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, Output(of=KERNEL))
    attention_output = StandardValue(values.ATTENTION_OUTPUT, Output())

    @property
    def kernel(self) -> Any:
        """vLLM's layer that attends."""
        return self.get(KERNEL)._module

    @property
    def num_heads(self) -> int:
        """The query heads of this block."""
        fragments = self.interleaver.fragments
        if fragments is None or not fragments.enabled:
            return self.kernel.num_heads
        return fragments.whole_heads(self.get(KERNEL))[0]

    @property
    def num_kv_heads(self) -> int:
        """The heads of this block that a latent is projected to."""
        return self.num_heads

    @property
    def qk_head_dim(self) -> int:
        """The width of this block's queries and keys."""
        return self.kernel.qk_head_dim

    @property
    def head_dim(self) -> int:
        """The width of this block's values and head outputs."""
        return self.kernel.v_head_dim

    def expanded(self, latents: Tensor) -> Tensor:
        """What every head makes of ``latents``, its keys' own features before its values."""
        # Inside the kernel no adapter is applied to it.
        projection = getattr(self.kernel.kv_b_proj, "base_layer", self.kernel.kv_b_proj)
        # Past the module's call, which is the forward's own and a location of its own.
        rows = type(projection).forward(projection, latents)[0]
        if self.num_heads != self.kernel.num_heads:
            from vllm.distributed import tensor_model_parallel_all_gather

            rows = tensor_model_parallel_all_gather(rows, dim=-1)
        return rows.reshape(rows.shape[0], self.num_heads, -1)

    def unavailable(self, name: str) -> str | None:
        if name not in {value.name for value in KERNEL_VALUES}:
            return super().unavailable(name)
        if "mla_attn" not in self._child_map:
            return "this block has no vLLM MLAAttention layer"
        if name in {value.name for value in _REBUILT}:
            if not self.kernel.kv_b_proj.weight.numel():
                return "vLLM keeps the projection of the latents in a packed form only"
            recomputed = (values.ATTENTION_SCORES.name, values.ATTENTION_PROBABILITIES.name)
            if name in recomputed and self.kernel.use_sparse:
                return "an indexer picks the keys that each query sees, inside the kernel"
        return super().unavailable(name)


class HalvedLatentAttention(LatentAttention):
    """One of which transformers splits each pair of rotated features over two halves."""

    attention_queries = LatentAttention.attention_queries.at(Halved(QUERIES))
    attention_keys = LatentAttention.attention_keys.at(Halved(KEYS))
