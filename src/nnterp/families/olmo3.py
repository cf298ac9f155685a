"""OLMo 3: OLMo 2, most of whose blocks see a window."""

from nnterp.families.olmo2 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
