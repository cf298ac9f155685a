"""Serves attention with sinks, whose heads can attend to nothing.

Beside the scores of the keys, a head has a number of its own that takes part in the softmax and in
nothing else. transformers' eager functions append it to each row of scores, and subtract the
largest number of the row from all of it before the softmax. So the scores are what enters the
softmax, without the last column, plus that largest number.
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
    """Return whether the host's attention module has sinks."""
    return getattr(host._module, "sinks", None) is not None


def _without_sink(host: Any, entering: Tensor) -> Tensor:
    """Return the scores, ``[batch, heads, query, key]``, without any column of sinks."""
    return entering[..., :-1] if _has_sinks(host) else entering


def _with_sink(host: Any, scores: Tensor, entering: Tensor) -> Tensor:
    """Undo `_without_sink`, with the sink's column of ``entering``, what entered the softmax."""
    return torch.cat([scores, entering[..., -1:]], dim=-1) if _has_sinks(host) else scores


def scores_below(called: str) -> Combined:
    """Return the site of the scores of an eager function that finds row maxima by ``called``.

    Args:
        called: The call that finds it, with dots as underscores.
    """
    entering = Mapped(masked(in_eager("F_softmax")), _without_sink, _with_sink, exact=True)
    return summed(OperationOutput(called, inside=INTERFACE), entering)
