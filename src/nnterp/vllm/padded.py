"""Attention whose values are narrower than its keys, in a kernel that knows one width.

Each head's values are filled up with zeros on their way in, and what comes out is cut
again; values and head outputs are served without the filling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor
from torch.nn.functional import pad

from .. import values
from ..eproperty import StandardValue
from ..sites import Output, Reading, Site
from .attention import KERNEL, VALUES, Attention


@dataclass(frozen=True)
class Cut:
    """A value of which each head's last features are filling."""

    site: Site

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        rows = self.site.read(host, raw).tensor
        heads = rows.unflatten(-1, (-1, host.qk_head_dim))
        return Reading(heads[..., : host.head_dim].flatten(-2), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        heads = tensor.unflatten(-1, (-1, host.head_dim))
        filled = pad(heads, (0, host.qk_head_dim - host.head_dim))
        return self.site.write(host, raw, filled.flatten(-2))


class PaddedAttention(Attention):
    """An attention module that fills its values up to the width of its keys."""

    attention_values = StandardValue(values.ATTENTION_VALUES, Cut(VALUES))
    attention_head_outputs = StandardValue(values.ATTENTION_HEAD_OUTPUTS, Cut(Output(of=KERNEL)))

    @property
    def head_dim(self) -> int:
        """The width of this block's values and head outputs."""
        return self._module.v_head_dim
