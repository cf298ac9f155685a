"""VaultGemma on vLLM: transformers' own blocks and scaled embedding."""

from nnterp.families.vaultgemma import RENAME
from nnterp.families.vllm.gpt2 import ENVOYS

__all__ = ["ENVOYS", "RENAME"]
