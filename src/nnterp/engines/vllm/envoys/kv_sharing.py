"""Serves attention whose keys and values later decoder blocks of the model use as well.

This is for transformers' own decoder blocks. Each block that uses the keys and values hands them to
a kernel of its own, and all of them hand over the same memory.
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
    """Writes keys or values in place, so that later decoder blocks see an edit too."""

    writes_in_place = True

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        self.get(host, raw).copy_(tensor)
        return raw


class KVSharingAttention(Attention):
    """Serves an attention module of a model whose last decoder blocks reuse keys and values."""

    attention_keys = StandardValue(values.ATTENTION_KEYS, SharedArgument("key", of=KERNEL))
    attention_values = StandardValue(values.ATTENTION_VALUES, SharedArgument("value", of=KERNEL))
