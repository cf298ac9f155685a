"""Phi-3: LLaMA with fused query-key-value and gate-up projections."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
