"""Attention whose keys and values later blocks use as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from .. import values
from ..eproperty import StandardValue
from .attention import KEY, VALUE, Attention, InterfaceArgument


@dataclass(frozen=True)
class SharedArgument(InterfaceArgument):
    """Keys or values that the model has kept for later blocks by the time of the call.

    They are written in place, so that those blocks see an edit too.
    """

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        self.read(host, raw).tensor.copy_(tensor)
        return raw


class SharingAttention(Attention):
    """An attention module of a model whose last blocks take over keys and values."""

    attention_keys = StandardValue(values.ATTENTION_KEYS, SharedArgument(KEY))
    attention_values = StandardValue(values.ATTENTION_VALUES, SharedArgument(VALUE))
