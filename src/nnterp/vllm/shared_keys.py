"""Attention of transformers' own blocks whose keys and values later blocks use as well.

Each of those blocks hands them to a kernel of its own, and all to the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from .. import values
from ..eproperty import StandardValue
from ..sites import Argument
from .attention import KERNEL, Attention


@dataclass(frozen=True)
class SharedArgument(Argument):
    """Keys or values that are written in place, so that later blocks see an edit too."""

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        self.get(host, raw).copy_(tensor)
        return raw


class SharingAttention(Attention):
    """An attention module of a model whose last blocks take over keys and values."""

    attention_keys = StandardValue(values.ATTENTION_KEYS, SharedArgument("key", of=KERNEL))
    attention_values = StandardValue(values.ATTENTION_VALUES, SharedArgument("value", of=KERNEL))
