"""DBRX: mixtures of experts; attention and both norms in one module of the block."""

from . import mpt
from .llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = {key: alias for key, alias in mpt.RENAME.items() if key != "attn"} | {
    "norm_attn_norm.attn": "self_attn",
}
