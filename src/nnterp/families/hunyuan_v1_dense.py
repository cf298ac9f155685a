"""HunYuan: LLaMA with norms on rotated queries and keys."""

from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
