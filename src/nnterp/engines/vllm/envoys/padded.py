"""Serves attention whose values are narrower than its keys, in a kernel that knows one width.

Each head's values are padded with zeros before they enter the kernel, and the padding is cut off
what comes out; values and head outputs are served without the padding.
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
    """Cut ``[tokens, heads * qk_head_dim]`` to ``[tokens, heads * head_dim]``."""
    heads = rows.unflatten(-1, (-1, host.qk_head_dim))
    return heads[..., : host.head_dim].flatten(-2)


def _with_filling(host: Any, rows: Tensor, held: Tensor) -> Tensor:
    """Pad ``[tokens, heads * head_dim]`` with zeros to ``[tokens, heads * qk_head_dim]``."""
    heads = rows.unflatten(-1, (-1, host.head_dim))
    return pad(heads, (0, host.qk_head_dim - host.head_dim)).flatten(-2)


def cut(site: Site) -> Mapped:
    """Map a value of which each head's last features are padding to the value without it.

    Args:
        site: Where the padded value is, ``[tokens, heads * qk_head_dim]``.
    """
    return Mapped(site, _without_filling, _with_filling, exact=True)


class PaddedAttention(Attention):
    """Serves an attention module that pads its values to the width of its keys."""

    attention_values = StandardValue(values.ATTENTION_VALUES, cut(VALUES))
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, cut(Output(of=KERNEL)))

    @property
    def head_dim(self) -> int:
        """Return the width of one head of this decoder block's values and head outputs."""
        return self._module.v_head_dim
