"""Serves queries and keys whose features vLLM has reordered in each head for its rotary kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nnterp.sites.base import Site
from nnterp.sites.mapped import Mapped


def paired(site: Site) -> Mapped:
    """Map queries or keys that the kernel has in halves to queries or keys in pairs.

    In halves, a feature and the one it is rotated with are half a head apart; in pairs, they are
    neighbours. The dot products are the same.

    Args:
        site: Where the queries or keys are, ``[tokens, heads * qk_head_dim]``.
    """
    return Mapped(site, _in_pairs, _in_halves, exact=True)


def _in_pairs(host: Any, rows: Tensor) -> Tensor:
    """Reorder each head of ``[tokens, heads * qk_head_dim]`` from halves to pairs."""
    halves = rows.reshape(len(rows), -1, 2, host.qk_head_dim // 2)
    return halves.transpose(-1, -2).reshape(rows.shape)


def _in_halves(host: Any, rows: Tensor, held: Tensor) -> Tensor:
    """Reorder each head of ``[tokens, heads * qk_head_dim]`` from pairs to halves."""
    pairs = rows.reshape(len(rows), -1, host.qk_head_dim // 2, 2)
    return pairs.transpose(-1, -2).reshape(rows.shape)
