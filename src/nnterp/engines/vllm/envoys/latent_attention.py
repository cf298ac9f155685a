"""Serves multi-head latent attention (MLA) on vLLM.

A token's keys and values are all made from one *latent*. The latent is what vLLM's kernel is handed
and caches, with the rotated features that every head's keys share. Queries and head outputs are
served as elsewhere. Keys and values exist inside the kernel, on prefill at most, so they are
rebuilt from the latents by the layer's own projection, and are read-only; scores and pattern are
computed from them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnterp.engines.vllm.envoys.attention import (
    IN_KERNEL,
    AttentionEnvoy,
    masked_scores,
    pattern,
)
from nnterp.sites.base import Site
from nnterp.sites.mapped import Computed, Mapped
from nnterp.sites.primitive import Argument, Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values

#: The path of vLLM's ``MLAAttention`` layer in an attention module.
KERNEL = "mla_attn.mla_attn"

QUERIES = Argument("q", of=KERNEL)
LATENTS = Argument("kv_c_normed", of=KERNEL)
SHARED_FEATURES = Argument("k_pe", of=KERNEL)

#: The names of what the latents are projected for.
_REBUILT = values.INSIDE_ATTENTION - {
    values.ATTENTION_QUERIES.name,
    values.ATTENTION_HEAD_OUTPUTS.name,
}

_FROM_LATENTS = (
    "it is rebuilt from each token's latent, which is all that the engine holds of it; edit "
    "the queries, the head outputs or what enters the block instead"
)


def _parts(host: Any, raw: Any) -> tuple[Tensor, Tensor]:
    """Return keys without their rotated features, and values, each ``[tokens, heads, width]``."""
    kernel = host.kernel
    widths = [kernel.qk_nope_head_dim, kernel.v_head_dim]
    unrotated, held = host.expanded(LATENTS.get(host, raw)).split(widths, dim=-1)
    return unrotated, held


def _keys(host: Any, raw: Any) -> Tensor:
    """Return keys, ``[tokens, heads, qk_head_dim]``, rebuilt from latents entering the kernel."""
    unrotated, _ = _parts(host, raw)
    rotated = SHARED_FEATURES.get(host, raw).expand(-1, unrotated.shape[1], -1)
    return torch.cat([unrotated, rotated], dim=-1)


def _scores(host: Any, raw: Any) -> Tensor:
    """Return scores, ``[heads, query, key]`` in float32, from queries and latents at the kernel."""
    pair = QUERIES.get(host, raw), _keys(host, raw)
    return masked_scores(host.kernel, *(rows.transpose(0, 1).float() for rows in pair))


def _served_scores(host: Any, raw: Any) -> Tensor:
    """Return the scores, ``[1, heads, query, key]``, in the dtype of the queries."""
    return _scores(host, raw).to(QUERIES.get(host, raw).dtype)[None]


def _served_pattern(host: Any, raw: Any) -> Tensor:
    """Return the attention pattern, ``[1, heads, query, key]``, in the dtype of the queries."""
    return pattern(host.kernel, _scores(host, raw)).to(QUERIES.get(host, raw).dtype)[None]


KEYS = Computed(LATENTS, _keys, _FROM_LATENTS)
VALUES = Computed(LATENTS, lambda host, raw: _parts(host, raw)[1], _FROM_LATENTS)


def halved(site: Site) -> Mapped:
    """Map queries or keys whose rotated features the kernel has in pairs to features in halves.

    In pairs, a feature and the one it is rotated with are neighbours; in halves, they are half the
    rotated width apart.

    Args:
        site: Where the queries or keys are, ``[tokens, heads, qk_head_dim]``.
    """
    return Mapped(
        site,
        to=lambda host, tensor: tensor[..., _order(host, tensor)],
        back=lambda host, halves, held: halves[..., _order(host, halves).argsort()],
        exact=True,
    )


def _order(host: Any, tensor: Tensor) -> Tensor:
    """Return for each feature served its index among the kernel's features, ``[qk_head_dim]``."""
    unrotated = host.kernel.qk_nope_head_dim
    features = torch.arange(tensor.shape[-1], device=tensor.device)
    rotated = features[unrotated:]
    return torch.cat([features[:unrotated], rotated[0::2], rotated[1::2]])


class LatentAttention(AttentionEnvoy):
    """Serves an attention module around vLLM's ``MLAAttention`` layer."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, QUERIES)
    attention_keys = StandardValue(values.ATTENTION_KEYS, KEYS)
    attention_values = StandardValue(values.ATTENTION_VALUES, VALUES)
    attention_scores = StandardValue(
        values.ATTENTION_SCORES, Computed(QUERIES, _served_scores, IN_KERNEL)
    )
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES, Computed(QUERIES, _served_pattern, IN_KERNEL)
    )
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, Output(of=KERNEL))

    @property
    def kernel(self) -> Any:
        """Return vLLM's ``MLAAttention`` layer."""
        return self.get(KERNEL)._module

    @property
    def num_heads(self) -> int:
        """Return the number of query heads of this decoder block, over all ranks."""
        fragments = self.interleaver.fragments
        if fragments is None or not fragments.enabled:
            return self.kernel.num_heads
        return fragments.whole_heads(self.get(KERNEL))[0]

    @property
    def num_kv_heads(self) -> int:
        """Return the number of heads of this decoder block that a latent is projected to."""
        return self.num_heads

    @property
    def qk_head_dim(self) -> int:
        """Return the width of one head of this decoder block's queries and keys."""
        return self.kernel.qk_head_dim

    @property
    def head_dim(self) -> int:
        """Return the width of one head of this decoder block's values and head outputs."""
        return self.kernel.v_head_dim

    def expanded(self, latents: Tensor) -> Tensor:
        """Project ``latents`` to each head's keys, without rotated features, followed by values.

        Args:
            latents: ``[tokens, width]``.

        Returns:
            ``[tokens, heads, qk_nope_head_dim + v_head_dim]``, with the heads of all ranks.
        """
        # The kernel applies no LoRA adapter to the projection.
        projection = getattr(self.kernel.kv_b_proj, "base_layer", self.kernel.kv_b_proj)
        # Not through the module's call, which is the forward's own, and an nnsight location.
        rows = type(projection).forward(projection, latents)[0]
        if self.num_heads != self.kernel.num_heads:
            from vllm.distributed import tensor_model_parallel_all_gather

            rows = tensor_model_parallel_all_gather(rows, dim=-1)
        return rows.reshape(rows.shape[0], self.num_heads, -1)

    def unavailable(self, name: str) -> str | None:
        if name not in values.INSIDE_ATTENTION:
            return super().unavailable(name)
        if "mla_attn" not in self._child_map:
            return "this block has no vLLM MLAAttention layer"
        if name in _REBUILT:
            if not self.kernel.kv_b_proj.weight.numel():
                return "vLLM keeps the projection of the latents in a packed form only"
            recomputed = (values.ATTENTION_SCORES.name, values.ATTENTION_PROBABILITIES.name)
            if name in recomputed and self.kernel.use_sparse:
                return "an indexer picks the keys that each query sees, inside the kernel"
        return super().unavailable(name)


class HalvedLatentAttention(LatentAttention):
    """Serves latent attention in which transformers splits each rotated pair over two halves."""

    attention_queries = LatentAttention.attention_queries.at(halved(QUERIES))
    attention_keys = LatentAttention.attention_keys.at(halved(KEYS))
