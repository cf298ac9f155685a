"""HunYuan MoE: HunYuan with a shared expert beside those that are chosen."""

from nnterp.families.hunyuan_v1_dense import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
