"""Queries and keys whose features vLLM has moved inside each head, for its rotary kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from ..sites import Reading, Site


@dataclass(frozen=True)
class Paired:
    """Queries or keys that the kernel has in halves, served in pairs.

    In halves, a feature and the one it is rotated with are half a head apart; in pairs, they
    are neighbours. The dot products are the same.
    """

    site: Site

    def location(self, host: Envoy) -> str:
        return self.site.location(host)

    def read(self, host: Any, raw: Any) -> Reading:
        rows = self.site.read(host, raw).tensor
        halves = rows.reshape(len(rows), -1, 2, host.qk_head_dim // 2)
        return Reading(halves.transpose(-1, -2).reshape(rows.shape), fresh=True)

    def write(self, host: Any, raw: Any, tensor: Tensor) -> Any:
        pairs = tensor.reshape(len(tensor), -1, host.qk_head_dim // 2, 2)
        return self.site.write(host, raw, pairs.transpose(-1, -2).reshape(tensor.shape))
