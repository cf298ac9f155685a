"""Attention with sinks: heads that can attend to nothing.

Beside the scores of the keys, a head has a number of its own that takes part in the softmax
and in nothing else. transformers' eager functions append it to each row of scores, and take
the largest of the row off all of it before the softmax; so the scores are what enters the
softmax, without the last column, and that largest number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from torch import Tensor

from ..composed import Joined
from ..sites import Reading
from .attention import INTERFACE, EagerArgument, Masked, last_call

_SOFTMAX = Masked(EagerArgument("F_softmax"))


@dataclass(frozen=True)
class RowMaximum:
    """The largest of each row of scores, which the eager function takes off the row.

    Attributes:
        called: The call that finds it, dots as underscores.
    """

    called: str

    def location(self, host: Envoy) -> str:
        eager = last_call(host.source, INTERFACE).source
        return f"{last_call(eager, self.called).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw.values)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("the largest score is found, and not written")


@dataclass(frozen=True)
class Keys:
    """What enters the softmax, without the sink where the attention has one."""

    def location(self, host: Envoy) -> str:
        return _SOFTMAX.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        entering = _SOFTMAX.read(host, raw)
        return Reading(entering.tensor[..., :-1], entering.fresh) if _sinks(host) else entering

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        if _sinks(host):
            tensor = torch.cat([tensor, raw[0][0][..., -1:]], dim=-1)
        return _SOFTMAX.write(host, raw, tensor)


def _sinks(host: Envoy) -> bool:
    return getattr(host._module, "sinks", None) is not None


def scores_below(called: str) -> Joined:
    """The scores, of an eager function that finds the largest of each row by ``called``."""
    return Joined(RowMaximum(called), Keys())
