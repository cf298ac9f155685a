"""Serves an attention module that several decoder blocks share.

The module runs once for each of them, so a location inside it is reached several times in a
forward. But each decoder block has an ``Attention`` layer of its own in there, which caches its
keys and values, and that layer stands for the block's attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.engines.vllm.envoys.attention import KERNEL, Attention
from nnterp.lifetime import Reading
from nnterp.sites.base import Site


class OwnKernel(Attention):
    """Serves a decoder block's own ``Attention`` layer in an attention module that it shares."""

    def get(self, path: str) -> Envoy:
        return self if path == KERNEL else super().get(path)


@dataclass(frozen=True)
class InBlock(Site):
    """Finds a value in the decoder block whose `OwnKernel` the host is.

    Attributes:
        site: Where the value is, from the decoder block.
    """

    site: Site

    @staticmethod
    def _block(host: Envoy) -> Envoy:
        """Return the decoder block whose ``self_attn`` is ``host``."""
        blocks = host.root.get("layers")
        return next(block for block in blocks if getattr(block, "self_attn", None) is host)

    def location(self, host: Envoy) -> str:
        return self.site.location(self._block(host))

    def read(self, host: Envoy, raw: Any) -> Reading:
        return self.site.read(self._block(host), raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return self.site.write(self._block(host), raw, tensor)
