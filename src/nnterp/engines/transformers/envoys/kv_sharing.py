"""Serves attention whose keys and values later blocks use as well."""

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
    """A `SharedArgument` is keys or values that the model keeps for later blocks before the call.

    They are written in place, so that those blocks see an edit too. Where gradients are kept, a
    block that has taken over keys and values cannot change them, because the backward pass of the
    block they come from needs them; writing back the same numbers leaves them valid for it.
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
    """`KVSharingAttention` is the envoy of attention in models that share keys and values.

    The last blocks of such a model take over those of earlier blocks.
    """

    attention_keys = StandardValue(values.ATTENTION_KEYS, SharedArgument(INTERFACE, 2, queries=1))
    attention_values = StandardValue(
        values.ATTENTION_VALUES, SharedArgument(INTERFACE, 3, queries=1)
    )
