"""Attention whose values are narrower than its keys, in a kernel that knows one width.

Each head's values are filled up with zeros on their way in, and what comes out is cut
again; values and head outputs are served without the filling.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from nnterp.engines.vllm.envoys.attention import KERNEL, VALUES, Attention
from nnterp.sites.base import Site
from nnterp.sites.mapped import Mapped
from nnterp.sites.primitive import Output
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


def _without_filling(host: Any, rows: Tensor) -> Tensor:
    heads = rows.unflatten(-1, (-1, host.qk_head_dim))
    return heads[..., : host.head_dim].flatten(-2)


def _with_filling(host: Any, rows: Tensor, held: Tensor) -> Tensor:
    heads = rows.unflatten(-1, (-1, host.head_dim))
    return pad(heads, (0, host.qk_head_dim - host.head_dim)).flatten(-2)


def cut(site: Site) -> Mapped:
    """A value of which each head's last features are filling.

    Args:
        site: Where it is, ``[tokens, heads * qk_head_dim]``.
    """
    return Mapped(site, _without_filling, _with_filling, exact=True)


class PaddedAttention(Attention):
    """An attention module that fills its values up to the width of its keys."""

    attention_values = StandardValue(values.ATTENTION_VALUES, cut(VALUES))
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, cut(Output(of=KERNEL)))

    @property
    def head_dim(self) -> int:
        """The width of this block's values and head outputs."""
        return self._module.v_head_dim
