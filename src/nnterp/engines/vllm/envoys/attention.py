"""Serves the attention of a vLLM decoder block, and recomputes what its kernel hides.

Queries, keys, values and head outputs enter and leave vLLM's ``Attention`` layer and are served
from there. Scores and pattern exist only inside its kernel, so they are computed again from the
request's queries and keys, with the layer's own scale, soft cap, ALiBi slopes, sliding window,
chunks and sinks. That needs every key of the sequence in this step, which is what the prefill has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnterp.engines.vllm.envoys.envoy import VLLMEnvoy
from nnterp.sites.base import find_module
from nnterp.sites.mapped import Computed
from nnterp.sites.primitive import Argument, Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values

#: The path of vLLM's ``Attention`` layer in an attention module.
KERNEL = "attn"

QUERIES = Argument("query", of=KERNEL)
KEYS = Argument("key", of=KERNEL)
VALUES = Argument("value", of=KERNEL)


def _recomputed(host: Any, raw: Any) -> Tensor:
    """Recompute scores, ``[heads, query, key]``, from the queries and keys entering the kernel."""
    kernel = host.get(KERNEL)._module
    queries = _per_head(QUERIES.get(host, raw), host.num_heads)
    keys = _per_head(KEYS.get(host, raw), host.num_kv_heads)
    return masked_scores(kernel, queries, keys)


def _per_head(rows: Tensor, heads: int) -> Tensor:
    """Reshape ``[tokens, heads * width]`` to ``[heads, tokens, width]``, in float32."""
    return rows.reshape(rows.shape[0], heads, -1).transpose(0, 1).float()


def recomputed_scores(host: Any, raw: Any) -> Tensor:
    """Return the scores, ``[1, heads, query, key]``, in the dtype of the queries.

    Args:
        host: The envoy of the attention module.
        raw: What enters the kernel for the request: the arguments of the kernel's call, with its
            queries and keys among them, each ``[tokens, heads * width]``.
    """
    return _recomputed(host, raw).to(QUERIES.get(host, raw).dtype)[None]


def recomputed_pattern(host: Any, raw: Any) -> Tensor:
    """Return the attention pattern, ``[1, heads, query, key]``, in the dtype of the queries.

    Args:
        host: The envoy of the attention module.
        raw: As for `recomputed_scores`.
    """
    kernel = host.get(KERNEL)._module
    return pattern(kernel, _recomputed(host, raw)).to(QUERIES.get(host, raw).dtype)[None]


#: The reason why scores and pattern cannot be written.
IN_KERNEL = "the kernel computes scores and pattern for itself"


def masked_scores(kernel: Any, queries: Tensor, keys: Tensor) -> Tensor:
    """Return scores, ``[heads, query, key]`` in float32, -inf where a key is not seen.

    Args:
        kernel: vLLM's ``Attention`` layer.
        queries: ``[heads, tokens, head_size]`` in float32, of one whole sequence.
        keys: ``[kv_heads, tokens, head_size]`` in float32, of the same tokens.
    """
    tokens = queries.shape[1]
    impl = kernel.impl
    keys = keys.repeat_interleave(queries.shape[0] // keys.shape[0], dim=0)
    scores = (queries @ keys.transpose(1, 2)) * impl.scale
    cap = getattr(impl, "logits_soft_cap", None)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    position = torch.arange(tokens, device=scores.device)
    distance = position[:, None] - position[None, :]
    slopes = getattr(impl, "alibi_slopes", None)
    if slopes is not None:
        scores = scores - slopes.to(scores)[:, None, None] * distance
    hidden = distance < 0
    # A latent attention of vLLM before 0.28 has none.
    window = getattr(kernel, "sliding_window", None)
    if window is not None:
        hidden |= distance >= window
    chunk = getattr(kernel, "attention_chunk_size", None)
    if chunk:
        hidden |= position[:, None] // chunk != position[None, :] // chunk
    return scores.masked_fill(hidden, float("-inf"))


def pattern(kernel: Any, scores: Tensor) -> Tensor:
    """Return the softmax of ``scores``, with the layer's sinks in its denominator where it has any.

    Args:
        kernel: vLLM's ``Attention`` layer.
        scores: ``[heads, query, key]``.

    Returns:
        ``[heads, query, key]``.
    """
    sinks = getattr(kernel.impl, "sinks", None)
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.to(scores)[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


class AttentionEnvoy(VLLMEnvoy):
    """Serves the output of a module that mixes tokens and adds to the residual stream."""

    attention_output = StandardValue(values.ATTENTION_OUTPUT, Output())


class Attention(AttentionEnvoy):
    """Serves an attention module around vLLM's ``Attention`` layer."""

    attention_queries = StandardValue(values.ATTENTION_QUERIES, QUERIES)
    attention_keys = StandardValue(values.ATTENTION_KEYS, KEYS)
    attention_values = StandardValue(values.ATTENTION_VALUES, VALUES)
    attention_scores = StandardValue(
        values.ATTENTION_SCORES, Computed(QUERIES, recomputed_scores, IN_KERNEL)
    )
    attention_probabilities = StandardValue(
        values.ATTENTION_PROBABILITIES, Computed(QUERIES, recomputed_pattern, IN_KERNEL)
    )
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, Output(of=KERNEL))

    @property
    def num_heads(self) -> int:
        """Return the number of query heads of this decoder block, over all ranks."""
        return self._head_counts()[0]

    @property
    def num_kv_heads(self) -> int:
        """Return the number of key and value heads of this decoder block, over all ranks."""
        return self._head_counts()[1]

    def _head_counts(self) -> tuple[int, int]:
        """Return the numbers of query heads and of key and value heads, over all ranks."""
        kernel = self.get(KERNEL)
        fragments = self.interleaver.fragments
        if fragments is None or not fragments.enabled:
            return kernel._module.num_heads, kernel._module.num_kv_heads
        return fragments.whole_heads(kernel)

    @property
    def qk_head_dim(self) -> int:
        """Return the width of one head of this decoder block's queries and keys."""
        return self.get(KERNEL)._module.head_size

    @property
    def head_dim(self) -> int:
        """Return the width of one head of this decoder block's values and head outputs."""
        return self.get(KERNEL)._module.head_size_v

    def unavailable(self, name: str) -> str | None:
        if name not in values.INSIDE_ATTENTION:
            return super().unavailable(name)
        kernel = find_module(self, KERNEL)
        if kernel is None:
            return "this block has no vLLM Attention layer"
        reason = _shared_keys(kernel._module, name)
        recomputed = (values.ATTENTION_SCORES.name, values.ATTENTION_PROBABILITIES.name)
        if reason is None and name in recomputed:
            reason = _not_recomputable(kernel._module, self.num_heads)
        return reason or super().unavailable(name)


class RecurrentMixer(AttentionEnvoy):
    """Serves a decoder block's mixer that carries a state from token to token, with no pattern."""


def _shared_keys(kernel: Any, name: str) -> str | None:
    """Return why ``name`` is not served by a kernel that uses another block's keys, or None."""
    owner = kernel.kv_sharing_target_layer_name
    own = (values.ATTENTION_QUERIES.name, values.ATTENTION_HEAD_OUTPUTS.name)
    if owner is None or name in own:
        return None
    return f"this block attends to the keys and values of {owner}, in vLLM's cache"


def _not_recomputable(kernel: Any, heads: int) -> str | None:
    """Return why the scores of ``kernel`` cannot be computed again outside it, or None."""
    from vllm.model_executor.layers.attention import Attention as CausalAttention
    from vllm.model_executor.layers.attention import ChunkedLocalAttention

    if type(kernel) not in (CausalAttention, ChunkedLocalAttention):
        return f"{type(kernel).__name__} masks in a way that is not recomputed"
    if kernel.attn_type != "decoder":
        return f"its attention is of type {kernel.attn_type}, not causal"
    if kernel.use_alibi_sqrt:
        return "its ALiBi bias is the square-root form, which is not recomputed"
    by_head = [getattr(kernel.impl, name, None) for name in ("alibi_slopes", "sinks")]
    if heads != kernel.num_heads and any(constant is not None for constant in by_head):
        return "its ALiBi slopes or sinks are spread over tensor-parallel ranks"
    return None
