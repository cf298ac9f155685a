"""Zamba 2: Zamba with Mamba 2 for its mixer and adapters on what is shared."""

from nnterp.families import zamba
from nnterp.families.zamba import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = zamba.RENAME | {"shared_transformer.self_attn": "self_attn"}
