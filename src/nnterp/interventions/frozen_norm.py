"""Takes the norm of a row for the linear map that it is once its scale is known.

A norm divides a row by its spread, multiplies each feature by a gain, and may subtract the row's
mean before and add a bias after. Only the spread is no linear function of the row. Held at what it
is for the whole row, the norm of a sum is the sum of the parts' norms, plus the bias once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nnterp.errors import Unavailable


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference below which numbers of ``dtype`` count as the same."""
    return torch.finfo(dtype).eps ** 0.5


def differs(one: Tensor, other: Tensor, scale: Tensor, within: float) -> bool:
    """Return whether a row of ``one`` is farther from that of ``other`` than ``within * scale``.

    Args:
        one: ``[..., hidden]``.
        other: The same shape.
        scale: The lengths that differences are relative to, ``[...]``.
        within: The relative difference that is none.
    """
    # Asked this way round, numbers that are none differ as well.
    return not bool(((one - other).norm(dim=-1) <= within * scale).all())


def probes(hidden: int) -> Tensor:
    """Return the rows, ``[3, hidden]``, whose norms show what a norm is made of.

    They are zeros, of which nothing but the bias is left; numbers of mean zero, none of them zero,
    which show the gain; and ones, of which nothing is left where the mean is subtracted.
    """
    signs = torch.ones(hidden)
    signs[1::2] = -1
    return torch.stack([torch.zeros(hidden), signs - signs.mean(), torch.ones(hidden)])


@dataclass(frozen=True)
class FrozenNorm:
    """A `FrozenNorm` is a norm whose scale is held at what it is for some rows.

    Attributes:
        gain: ``[hidden]``.
        bias: ``[hidden]``.
        centred: Whether the mean is subtracted, as by a LayerNorm.
        scale: The factor of each row, ``[rows, 1]``.
    """

    gain: Tensor
    bias: Tensor
    centred: bool
    scale: Tensor

    @classmethod
    def at(cls, rows: Tensor, normed: Tensor, probed: Tensor, within: float) -> FrozenNorm:
        """Return the norm as it is for ``rows``.

        Args:
            rows: ``[rows, hidden]``, in float64.
            normed: What the norm makes of them.
            probed: What it makes of `probes`, ``[3, hidden]``.
            within: The relative difference that is rounding.

        Raises:
            Unavailable: It is something else than a norm with a gain for each feature.
        """
        bias, signs, ones = probed
        gain = (signs - bias) / probes(len(bias))[1]
        centred = bool(((ones - bias) * gain).sum() < gain.square().sum() / 2)
        unscaled = cls(gain, bias, centred, torch.ones(len(rows), 1, dtype=rows.dtype)).of(rows)
        scaled = normed - bias
        scale = (scaled * unscaled).sum(-1) / unscaled.square().sum(-1)
        frozen = cls(gain, bias, centred, scale[:, None])
        if differs(frozen.of(rows), scaled, scaled.norm(dim=-1), within):
            raise Unavailable(
                "what precedes the output projection is no norm with a gain for each feature, so "
                "logits are no sum of shares; logit_lens reads the stream all the same"
            )
        return frozen

    def of(self, parts: Tensor) -> Tensor:
        """Return what the norm makes of parts of its rows, ``[..., rows, hidden]``, but the bias.

        Args:
            parts: The same shape.
        """
        if self.centred:
            parts = parts - parts.mean(-1, keepdim=True)
        return parts * self.scale * self.gain
