"""DBRX: mixtures of experts; attention and both norms in one module of the block."""

from nnterp.families import mpt
from nnterp.families.llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = {key: alias for key, alias in mpt.RENAME.items() if key != "attn"} | {
    "norm_attn_norm.attn": "self_attn",
}
