"""Attention of transformers' own blocks whose keys and values later blocks use as well.

Each of those blocks hands them to a kernel of its own, and all to the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.engines.vllm.envoys.attention import KERNEL, Attention
from nnterp.sites.primitive import Argument
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


@dataclass(frozen=True)
class SharedArgument(Argument):
    """Keys or values that are written in place, so that later blocks see an edit too."""

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        self.get(host, raw).copy_(tensor)
        return raw


class KVSharingAttention(Attention):
    """An attention module of a model whose last blocks take over keys and values."""

    attention_keys = StandardValue(values.ATTENTION_KEYS, SharedArgument("key", of=KERNEL))
    attention_values = StandardValue(values.ATTENTION_VALUES, SharedArgument("value", of=KERNEL))
