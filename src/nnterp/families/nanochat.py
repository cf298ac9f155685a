"""nanochat: norms without weights, the last of which also norms the embeddings, capped logits."""

from nnterp.families.gemma2 import READOUT
from nnterp.families.llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
