"""GPT-NeoX on vLLM: one tensor between blocks.

Served through vLLM's Transformers backend, whose blocks are transformers' own around
vLLM's attention kernel; older releases have a definition of their own.
"""

from ..gpt_neox import RENAME
from .gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
