"""GLM-5: an indexer picks what is seen, and some blocks take over an earlier one's pick."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
