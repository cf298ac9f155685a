"""Command R: attention and MLP side by side after one norm, and a scale on the logits."""

from nnterp.engines.transformers.envoys.readout import multiplied
from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]

READOUT = multiplied("logit_scale")
