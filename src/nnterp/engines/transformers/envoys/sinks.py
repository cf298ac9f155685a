"""Attention with sinks: heads that can attend to nothing.

Beside the scores of the keys, a head has a number of its own that takes part in the softmax
and in nothing else. transformers' eager functions append it to each row of scores, and take
the largest of the row off all of it before the softmax; so the scores are what enters the
softmax, without the last column, and that largest number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnterp.engines.transformers.envoys.attention import INTERFACE, in_eager, masked
from nnterp.sites.mapped import Mapped
from nnterp.sites.source import OperationOutput
from nnterp.sites.two_part import Combined, summed


def _has_sinks(host: Any) -> bool:
    return getattr(host._module, "sinks", None) is not None


def _without_sink(host: Any, entering: Tensor) -> Tensor:
    return entering[..., :-1] if _has_sinks(host) else entering


def _with_sink(host: Any, scores: Tensor, entering: Tensor) -> Tensor:
    return torch.cat([scores, entering[..., -1:]], dim=-1) if _has_sinks(host) else scores


def scores_below(called: str) -> Combined:
    """The scores, of an eager function that finds the largest of each row by ``called``.

    Args:
        called: The call that finds it, dots as underscores.
    """
    entering = Mapped(masked(in_eager("F_softmax")), _without_sink, _with_sink, exact=True)
    return summed(OperationOutput(called, inside=INTERFACE), entering)
