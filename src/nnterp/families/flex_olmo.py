"""FlexOLMo: OLMo 2 with a mixture of experts in every block."""

from nnterp.families.olmo2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
