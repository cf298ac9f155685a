"""GLM-4.7 Flash on vLLM: as DeepSeek-V3."""

from nnterp.families.vllm.deepseek_v3 import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
