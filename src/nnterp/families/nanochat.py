"""nanochat: norms without weights, the last of which also norms the embeddings, capped logits."""

from .gemma2 import READOUT
from .llama import ENVOYS, RENAME

__all__ = ["ENVOYS", "READOUT", "RENAME"]
