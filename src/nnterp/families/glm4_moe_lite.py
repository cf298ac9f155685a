"""GLM-4.7 Flash: DeepSeek-V3's blocks at a smaller size."""

from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
