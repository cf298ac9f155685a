"""Attention whose keys and values later blocks use as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.engines.transformers.envoys.attention import INTERFACE, Attention
from nnterp.sites.source import AttentionArgument
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


@dataclass(frozen=True)
class SharedArgument(AttentionArgument):
    """Keys or values that the model has kept for later blocks by the time of the call.

    They are written in place, so that those blocks see an edit too. Those that a block itself
    has taken over are held by the backward pass of the block they come from, which a copy of
    the same numbers leaves as it is.
    """

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        held = self.read(host, raw).tensor
        if not (held.requires_grad and host._module.is_kv_shared_layer):
            held.copy_(tensor)
        elif torch.equal(held, tensor):
            with torch.autograd._unsafe_preserve_version_counter(held):
                held.copy_(tensor)
        else:
            raise ValueError(
                f"{host.path} has its keys and values from an earlier block, whose backward pass "
                "needs them as they are: edit them there, or under torch.no_grad()"
            )
        return raw


class KVSharingAttention(Attention):
    """An attention module of a model whose last blocks take over keys and values."""

    attention_keys = StandardValue(values.ATTENTION_KEYS, SharedArgument(INTERFACE, 2, queries=1))
    attention_values = StandardValue(
        values.ATTENTION_VALUES, SharedArgument(INTERFACE, 3, queries=1)
    )
