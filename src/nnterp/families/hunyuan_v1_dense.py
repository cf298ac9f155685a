"""HunYuan: LLaMA with norms on rotated queries and keys."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
