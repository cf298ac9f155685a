"""Seed-OSS on vLLM: transformers' own blocks, through the Transformers backend."""

from ..seed_oss import RENAME
from .gpt_neox import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
